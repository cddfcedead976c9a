import base64
import dataclasses
import json
import zlib

from lib.artifacts.completions import read_graded
from lib.engines.policy import load_tokenizer
from lib.report.inputs import rendered_prompts
from lib.report.page import completion_blocks
from tests.lib.report.runs import write_run


def test_a_prompt_is_what_the_base_model_s_tokenizer_makes(base, tmp_path):
    rows = list(read_graded(write_run(tmp_path, problems=4) / "graded" / "grpo.jsonl"))
    prompts = rendered_prompts(rows, base=base, system="Think.")
    tokenizer = load_tokenizer(base)
    for row in rows:
        turns = {"system": "Think.", "user": row.problem}.items()
        messages = [{"role": role, "content": text} for role, text in turns]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert prompts[row.benchmark, row.problem_id] == text


def test_prompts_that_differ_are_on_the_page_by_checkpoint(run):
    def on_page(run):
        packed = completion_blocks(run, [*run.completions.values()])["problems"]
        return json.loads(zlib.decompress(base64.b64decode(packed)))["problems"][0]["prompt"]

    key, text = next(iter(run.prompts["base"].items()))
    assert on_page(run) == text
    own = {**run.prompts, "grpo": {**run.prompts["grpo"], key: "?"}}
    shown = on_page(dataclasses.replace(run, prompts=own))
    assert shown == {"base": text, "sft": text, "grpo": "?"}
