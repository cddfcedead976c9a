"""How far a checkpoint moved: KL over the vocabulary, against a loop over single tokens."""

import json

import pytest
import torch
from click.testing import CliRunner

from examples.forgetting.measure import main
from lib.artifacts import write_jsonl
from lib.engines.base import encode
from lib.models.load import load_policy
from lib.models.pretrained import load_tokenizer
from lib.models.save import save_policy


def test_kl_is_that_of_each_token_in_its_own_sequence(base, smoke, tmp_path):
    tokenizer = load_tokenizer(base)
    torch.manual_seed(0)
    before = load_policy(base, base=base, settings=smoke.model).eval()
    after = load_policy(base, base=base, settings=smoke.model).eval()
    with torch.no_grad():
        for weight in after.parameters():
            weight += 0.05 * torch.randn_like(weight)
    save_policy(after, tokenizer, tmp_path / "after")
    # Two lengths, so that the shorter one is padded. Greedy and second samples are left out, and
    # other benchmarks.
    prompts = [[{"role": "user", "content": text}] for text in ("2 + 2?", "How many apples are 7?")]
    rows = [
        {
            "benchmark": "held_out",
            "mode": mode,
            "sample": sample,
            "prompt": prompt,
            "token_ids": ids if (mode, sample) == ("sampled", 0) else [3, 4, 6],
        }
        for prompt, ids in zip(prompts, ([5, 9], [7, 8, 11, 12, 3]), strict=True)
        for mode, sample in (("sampled", 0), ("sampled", 1), ("greedy", 0))
    ]
    file = tmp_path / "completions.jsonl"
    write_jsonl(file, [*rows, {**rows[0], "benchmark": "harder", "token_ids": [3, 4, 6]}])

    arguments = ["--base", base, "--start", base, "--completions", file, tmp_path / "after"]
    result = CliRunner().invoke(main, [str(each) for each in arguments], catch_exceptions=False)
    start, after_measures = map(json.loads, result.output.splitlines())

    expected = []
    for prompt, row in zip(encode(tokenizer, prompts), rows[::3], strict=True):
        total = 0.0
        for position in range(len(row["token_ids"])):
            ids = torch.tensor([prompt + row["token_ids"][:position]])
            with torch.no_grad():
                old, new = (model(ids).logits[0, -1].double() for model in (before, after))
            total += float((old.softmax(-1) * (old.log_softmax(-1) - new.log_softmax(-1))).sum())
        expected.append(total)
    assert (start["kl"], start["kl_se"]) == (0, 0)
    assert after_measures["kl"] == pytest.approx(sum(expected) / 2, abs=1e-3)
    assert after_measures["kl"] > 0.1
