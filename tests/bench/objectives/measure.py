"""One measurement in one process: a forward and backward pass, its peak memory or its times.

Run by `tests.bench.objectives`, once per row of its tables; prints one JSON object.
Linux only: the peak is the kernel's high-water mark of resident memory.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lib.objectives.logprobs import compute_entropy, score_hidden, selective_log_softmax

HIDDEN_SIZE = 64


def from_hidden(num_tokens: int, vocab_size: int, chunk_size: int | None) -> Callable[[], None]:
    """Score tokens from hidden states through an output layer, and go back to both."""
    hidden = torch.randn(num_tokens, HIDDEN_SIZE, requires_grad=True)
    head = torch.nn.Linear(HIDDEN_SIZE, vocab_size, bias=False)
    labels = torch.randint(vocab_size, (num_tokens,))

    def run() -> None:
        hidden.grad = head.weight.grad = None
        if chunk_size is None:
            logits = head(hidden)
            _backward(selective_log_softmax(logits, labels), compute_entropy(logits))
        else:
            scored = score_hidden(hidden, head, labels, chunk_size=chunk_size)
            _backward(scored.log_probs, scored.entropy)

    return run


def from_logits(num_tokens: int, vocab_size: int, chunk_size: int | None) -> Callable[[], None]:
    """Score tokens from logits that are there already, and go back to them."""
    logits = torch.randn(num_tokens, vocab_size, requires_grad=True)
    labels = torch.randint(vocab_size, (num_tokens,))

    def run() -> None:
        logits.grad = None
        log_probs = selective_log_softmax(logits, labels, chunk_size=chunk_size)
        _backward(log_probs, compute_entropy(logits, chunk_size))

    return run


PASSES = {"hidden": from_hidden, "logits": from_logits}


def _backward(log_probs: Tensor, entropy: Tensor) -> None:
    (log_probs - 0.01 * entropy).sum().backward()  # type: ignore[no-untyped-call]


def peak_mib(run: Callable[[], None]) -> float:
    """Peak resident memory of a pass beyond what was resident before it, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status_kib("VmRSS")
    run()
    return (_status_kib("VmHWM") - before) / 1024


def _status_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def paired_seconds(
    plain: Callable[[], None], chunked: Callable[[], None], repeats: int
) -> dict[str, list[float]]:
    """Times in turns, so that whatever else the machine does slows both alike."""
    seconds: dict[str, list[float]] = {"plain": [], "chunked": []}
    for run in (plain, chunked):
        run()
    for _ in range(repeats):
        for name, run in (("plain", plain), ("chunked", chunked)):
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def time_ratio(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Chunked over plain, pair by pair: median and quartiles."""
    ratios = [c / p for p, c in zip(seconds["plain"], seconds["chunked"], strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "ratio": round(median, 3),
        "ratio_q1": round(low, 3),
        "ratio_q3": round(high, 3),
        "plain_s": round(statistics.median(seconds["plain"]), 4),
        "chunked_s": round(statistics.median(seconds["chunked"]), 4),
    }


def main() -> None:
    """Parse the row, measure it, print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("quantity", choices=["memory", "time"])
    parser.add_argument("source", choices=PASSES)
    parser.add_argument("num_tokens", type=int)
    parser.add_argument("vocab_size", type=int)
    parser.add_argument("chunk_size", type=int, help="0: the plain form (memory only)")
    parser.add_argument("--repeats", type=int, default=9)
    row = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make = PASSES[row.source]
    chosen = make(row.num_tokens, row.vocab_size, row.chunk_size or None)
    if row.quantity == "memory":
        # allocator pools and kernels' scratch space are set up before the mark is reset
        make(16, 64, row.chunk_size or None)()
        measured = {"peak_mib": round(peak_mib(chosen), 1)}
    else:
        plain = make(row.num_tokens, row.vocab_size, None)
        measured = time_ratio(paired_seconds(plain, chosen, row.repeats))
    print(json.dumps(measured))  # noqa: T201


if __name__ == "__main__":
    main()
