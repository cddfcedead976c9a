"""Log-probs over a large vocabulary: peak memory and CPU time of a forward and a backward pass.

    python -m tests.bench.objectives

measures each way in a process of its own, in turns, and writes results.json and README.md in this
folder: a quarter of an hour, up to 9 GB. Linux only: the peak is the kernel's high-water mark.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl.trainer import utils

from lib.objectives.logprobs import (
    compute_entropy,
    score_labels,
    selective_log_softmax,
)
from lib.objectives.sizes import CHUNK_NUMEL
from tests.bench.results import machine, paired, quartiles, shown, write

FOLDER = Path(__file__).parent
ROUNDS = 4
VOCABULARY, ROWS, TOKENS, PROMPT = 151_936, 8, 512, 16
STOCK, FUSED = "TRL, whole logits", "reckon, fused"
WAYS: dict[str, tuple[str, int]] = {
    STOCK: ("trl", 0),
    "TRL, tiles of 2048 tokens × 8192 entries": ("trl_tiles", 8192),
    "reckon, whole logits": ("whole", 0),
    "reckon, fused, chunks half as large": ("fused", CHUNK_NUMEL // 2),
    FUSED: ("fused", CHUNK_NUMEL),
    "reckon, fused, chunks twice as large": ("fused", CHUNK_NUMEL * 2),
}
"""Each a function below and its size of a chunk."""


def trl(model: Any, inputs: dict[str, Any], labels: Tensor, mask: Tensor, _: int) -> Tensor:
    """TRL's GRPO without its kernel for GPUs: the last logits are cut off by a slice."""
    return utils.selective_log_softmax_and_entropy(
        model(**inputs).logits[:, :-1], labels, entropy_requires_grad=False, row_mask=mask
    )[0]


def trl_tiles(
    model: Any, inputs: dict[str, Any], labels: Tensor, mask: Tensor, size: int
) -> Tensor:
    """TRL's function of the hidden states."""
    del inputs["logits_to_keep"]
    hidden = model.model(**inputs).last_hidden_state[:, PROMPT - 1 : -1]
    rows, head = hidden.reshape(-1, hidden.shape[-1]), model.lm_head.weight
    log_probs, _ = utils._ChunkedLogProbFunction.apply(rows, head, None, labels.ravel(), 1.0, size)
    return log_probs.view(labels.shape)


def whole(model: Any, inputs: dict[str, Any], labels: Tensor, mask: Tensor, _: int) -> Tensor:
    """As GRPO's `scoring` does where logits are small: labels padded, no logits sliced."""
    logits = model(**inputs).logits
    with torch.no_grad():
        for rows in logits.flatten(0, 1).split(128):
            compute_entropy(rows)
    return selective_log_softmax(logits, _padded(labels))[:, :-1]


def fused(model: Any, inputs: dict[str, Any], labels: Tensor, mask: Tensor, size: int) -> Tensor:
    """As GRPO's `scoring` does where logits are large."""
    scores = score_labels(model, inputs, _padded(labels), _padded(mask).bool(), chunk_numel=size)
    return scores.log_probs[:, :-1]


def _padded(tensor: Tensor) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, 1))


PASSES = {function.__name__: function for function in (trl, trl_tiles, whole, fused)}


def measure(way: str, size: int, *, vocabulary: int, tokens: int) -> dict[str, float]:
    """MiB at the peak beyond what was resident before, weights and gradients included; seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    ids = torch.randint(vocabulary, (ROWS, PROMPT + tokens))
    labels, mask = ids[:, PROMPT:], torch.ones(ROWS, tokens, dtype=torch.long)
    inputs = {"input_ids": ids, "use_cache": False, "logits_to_keep": tokens + 1}
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before, start = _status_kib("VmRSS"), time.process_time()
    log_probs = PASSES[way](model, inputs, labels, mask, size)
    # Rows of another sign, as advantages are.
    (log_probs * torch.linspace(-1, 1, ROWS)[:, None]).sum().backward()
    seconds = time.process_time() - start
    return {"peak_mib": (_status_kib("VmHWM") - before) / 1024, "cpu_s": seconds}


def _status_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def in_a_process(
    way: str, size: int, *, vocabulary: int = VOCABULARY, tokens: int = TOKENS
) -> dict[str, float]:
    """`measure` in a fresh one."""
    row = json.dumps([way, size, {"vocabulary": vocabulary, "tokens": tokens}])
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.objectives", row],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        # glibc raises the threshold by itself, and then keeps freed blocks, which would count.
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**20)},
    )
    return dict(json.loads(done.stdout))


def render(results: dict[str, Any]) -> str:
    """The README, a function of results.json alone."""
    rows = [
        f"| {name} | {way['peak_mib'][0]:,.0f} | {shown(way['cpu_s'])} | "
        f"{shown(results['ratios'][name])} |"
        for name, way in results["ways"].items()
    ]
    return f"""# Log-probs over a large vocabulary: memory and time

Written by `python -m tests.bench.objectives`; the numbers are in results.json. A random Qwen3
(V = {VOCABULARY:,}, hidden 256, 2 layers, tied) scores {ROWS} completions of {TOKENS} tokens and
goes back, in float32 on one thread ({results["machine"]}, torch {results["torch"]},
TRL {results["trl"]}). Each way had {results["rounds"]} processes of its own, in turns, while the
machine had other work to do: compare the ratios, which are taken within a round. Medians
(quartiles).

*Peak* is resident memory beyond what was resident before the two passes, weights and gradients
included in the latter, with glibc told to return freed blocks (`MALLOC_MMAP_THRESHOLD_=1048576`).
A chunk is {CHUNK_NUMEL:,} logits.

| way | peak, MiB | CPU s | CPU s over TRL's whole logits |
| --- | ---: | ---: | ---: |
{chr(10).join(rows)}
"""


def main() -> None:
    """Measure everything and write both files; with an argument, measure that row and print it."""
    if len(sys.argv) > 1:
        way, size, shape = json.loads(sys.argv[1])
        print(json.dumps(measure(way, size, **shape)))  # noqa: T201
        return
    rounds = [{name: in_a_process(*way) for name, way in WAYS.items()} for _ in range(ROUNDS)]
    figures = {
        name: {field: [each[name][field] for each in rounds] for field in ("peak_mib", "cpu_s")}
        for name in WAYS
    }
    results = {
        **machine("torch", "trl"),
        "rounds": ROUNDS,
        "ways": {
            name: {field: quartiles(values) for field, values in way.items()}
            for name, way in figures.items()
        },
        "ratios": {
            name: paired(way["cpu_s"], figures[STOCK]["cpu_s"]) for name, way in figures.items()
        },
    }
    write(FOLDER, results, render)


if __name__ == "__main__":
    main()
