"""What chunked log-probs and entropies save in memory and cost in time, against the plain forms.

    python -m tests.bench.objectives

measures each row in a process of its own, one thread, and writes results.json and README.md in
this folder. Takes some minutes on one core, and up to 3 GB.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent
CHUNK_SIZE = 128
VOCAB_SIZE = 32_768
MEMORY_TOKENS = (512, 1024, 2048, 4096)
MEMORY_VOCABULARIES = (8_192, 16_384, 32_768, 65_536)
TIMED = ((1024, 8_192), (1024, 32_768), (4096, 8_192))
TIMED_CHUNKS = (32, 128, 512)


# glibc raises this threshold by itself and then keeps freed blocks, which would count as peak
RETURN_FREED = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}


def measure(
    quantity: str, source: str, tokens: int, vocabulary: int, chunk: int, **environment: str
) -> Any:
    """One row, measured in a fresh process."""
    row = [quantity, source, str(tokens), str(vocabulary), str(chunk)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.objectives.measure", *row],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )
    return json.loads(done.stdout)


def memory_rows() -> list[dict[str, Any]]:
    """Peak of both forms as the batch grows at one vocabulary, and the other way round."""
    shapes = [(tokens, VOCAB_SIZE) for tokens in MEMORY_TOKENS]
    shapes += [(1024, vocabulary) for vocabulary in MEMORY_VOCABULARIES if vocabulary != VOCAB_SIZE]
    forms = {
        "plain_mib": (0, RETURN_FREED),
        "chunked_mib": (CHUNK_SIZE, RETURN_FREED),
        "chunked_default_malloc_mib": (CHUNK_SIZE, {}),
    }
    return [
        {"source": source, "tokens": tokens, "vocabulary": vocabulary}
        | {
            name: measure("memory", source, tokens, vocabulary, chunk, **environment)["peak_mib"]
            for name, (chunk, environment) in forms.items()
        }
        for source in ("hidden", "logits")
        for tokens, vocabulary in shapes
    ]


def time_rows() -> list[dict[str, Any]]:
    """Time of the chunked form over the plain one's."""
    return [
        {"source": source, "tokens": tokens, "vocabulary": vocabulary, "chunk": chunk}
        | measure("time", source, tokens, vocabulary, chunk)
        for source in ("hidden", "logits")
        for tokens, vocabulary in TIMED
        for chunk in TIMED_CHUNKS
    ]


def render(results: dict[str, Any]) -> str:
    """The README, a function of results.json alone."""
    memory = [
        f"| {row['source']} | {row['tokens']} | {row['vocabulary']} | {logits_mib(row):.0f} "
        f"| {row['plain_mib']:.0f} | {row['chunked_mib']:.0f} "
        f"| {row['chunked_default_malloc_mib']:.0f} |"
        for row in results["memory"]
    ]
    times = [
        f"| {row['source']} | {row['tokens']} | {row['vocabulary']} | {row['chunk']} "
        f"| {row['plain_s']:.3f} "
        f"| {row['ratio']:.2f} ({row['ratio_q1']:.2f}–{row['ratio_q3']:.2f}) |"
        for row in results["time"]
    ]
    return TEMPLATE.format(
        chunk_size=CHUNK_SIZE, memory="\n".join(memory), time="\n".join(times), **results["machine"]
    )


def logits_mib(row: dict[str, Any]) -> float:
    """Size of one float32 tensor of logits."""
    return float(row["tokens"] * row["vocabulary"] * 4 / 2**20)


TEMPLATE = """# Chunked log-probs and entropies: memory and time

Written by `python -m tests.bench.objectives`; the numbers are in results.json.
A pass computes log-probs and entropies of all tokens and goes back through both, in float32 on
one thread ({processor} with {cores} cores, load {load}, torch {torch}).

- *hidden*: from hidden states (D = 64) through the output layer, `score_hidden`, which never makes
  the batch's logits.
- *logits*: from logits that exist already, `chunk_size` of `selective_log_softmax` and
  `compute_entropy`. Their gradients have the logits' size, so this pass cannot be flat: two
  gradients and their sum are three such tensors.

*hidden*, chunked, is flat in the number of tokens: six to seven tensors of chunk · vocabulary, the
output layer's gradient included.

## Peak memory beyond the inputs, in MiB (chunks of {chunk_size} tokens)

Resident memory, with glibc told to return freed blocks (`MALLOC_MMAP_THRESHOLD_=1048576`), which
makes it the memory that torch holds. The last column is without that: between sizes of 1 and
32 MiB glibc may keep and fragment blocks that torch has freed.

| source | tokens | vocabulary | one tensor of logits | plain | chunked | glibc's default |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
{memory}

## Time, chunked over plain: median of 9 pairs (quartiles)

With glibc's default settings. The two forms are run in turns, so that other load slows both alike:
read the ratios rather than the seconds. Small chunks are faster than the plain form although the
output layer's product is computed twice, most likely because they reuse warm memory, where blocks
above 32 MiB come from the kernel page by page every time. D is small here; in a wide model the
second product weighs more.

| source | tokens | vocabulary | chunk | plain, s | ratio |
| --- | ---: | ---: | ---: | ---: | ---: |
{time}
"""


def main() -> None:
    """Measure everything and write both files."""
    results: dict[str, Any] = {"memory": memory_rows(), "time": time_rows()}
    results["machine"] = {
        "processor": f"{platform.machine()} CPU",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1], 1),
        "torch": torch.__version__,
    }
    (FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (FOLDER / "README.md").write_text(render(results))


if __name__ == "__main__":
    main()
