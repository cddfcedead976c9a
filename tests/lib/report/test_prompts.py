import base64
import dataclasses
import json
import zlib

import pytest

from lib.artifacts.completions import read_graded
from lib.engines.policy import load_tokenizer
from lib.errors import UserError
from lib.report.page import completion_blocks
from lib.report.prompts import rendered_prompts
from tests.lib.report.runs import read, write_json, write_run


def test_a_prompt_is_what_the_tokenizer_of_the_base_model_makes_of_it(base, tmp_path):
    graded = write_run(tmp_path, problems=4).graded
    rows = list(read_graded(graded / "grpo.jsonl"))
    prompts = rendered_prompts(rows, base=base, system="Think.")
    tokenizer = load_tokenizer(base)
    for row in rows:
        messages = [
            {"role": "system", "content": "Think."},
            {"role": "user", "content": row.problem},
        ]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert prompts[row.benchmark, row.problem_id] == text


@pytest.mark.parametrize(
    ("bos", "start"), [("<s>", "<s>"), (None, ""), ({"content": "<b>"}, "<b>")]
)
def test_a_prompt_begins_with_the_bos_that_the_tokenizer_has(tmp_path, bos, start):
    sources = write_run(tmp_path, problems=2)
    write_json(sources.base / "tokenizer_config.json", {"bos_token": bos})
    (text, *_) = read(sources).prompts["sft"].values()
    assert text.startswith(f"{start}<system>Think.<user>Mara has 0 shells")


def test_checkpoints_that_read_different_prompts_have_their_own_on_the_page(run):
    def on_page(run):
        packed = completion_blocks(run, run.completions)["problems"]
        return json.loads(zlib.decompress(base64.b64decode(packed)))["problems"][0]["prompt"]

    key, text = next(iter(run.prompts["base"].items()))
    assert on_page(run) == text
    own = {**run.prompts, "grpo": {**run.prompts["grpo"], key: "?"}}
    assert on_page(dataclasses.replace(run, prompts=own)) == {
        "base": text,
        "sft": text,
        "grpo": "?",
    }


def test_a_base_model_without_a_tokenizer_is_an_error_that_says_what_writes_it(tmp_path):
    sources = write_run(tmp_path, problems=2)
    (sources.base / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match=r"base: no tokenizer .* run `dvc repro`"):
        read(sources)
