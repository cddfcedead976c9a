"""Run the benchmark: `python -m tests.bench.prepare` (about two minutes).

Each case runs in a process of its own. Memory is what the process itself allocates (`RssAnon`, the
highest of samples taken every 20 ms): pages of the memory-mapped Arrow files, which the system
takes back when it needs them, are in the other figure.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.bench.prepare.rows import NUM_BENCHMARK, vocabulary, write_rows

HERE = Path(__file__).parent
ROWS = 17_000
CASES = {
    "gsm8k_size": {"count": ROWS, "text_scale": 1},
    "text_x4": {"count": ROWS, "text_scale": 4},
    "text_x16": {"count": ROWS, "text_scale": 16},
}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(**json.loads(sys.argv[1]))))  # noqa: T201
        return
    results = {"machine": machine(), "cases": {name: run(case) for name, case in CASES.items()}}
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (HERE / "README.md").write_text(page(results), encoding="utf-8")
    print(page(results))  # noqa: T201


def machine() -> dict[str, Any]:
    return {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}


def run(case: dict[str, int]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.prepare", json.dumps(case)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def measure(*, count: int, text_scale: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        raw.mkdir()
        write_rows(raw / "train.jsonl", count=count, text_scale=text_scale)
        write_rows(raw / "test.jsonl", count=NUM_BENCHMARK, text_scale=1, split="test")
        tokenizer = train_tokenizer(Path(folder))
        with Memory() as memory:
            started = time.perf_counter(), time.process_time()
            figures = prepare(raw, tokenizer, cache=Path(folder) / "cache", scale=text_scale)
            seconds = time.perf_counter() - started[0]
            cpu_seconds = time.process_time() - started[1]
        megabytes = (raw / "train.jsonl").stat().st_size / 1e6
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "file_mb": round(megabytes, 1),
        **memory.figures(),
        **figures,
    }


def prepare(raw: Path, tokenizer: Path, *, cache: Path, scale: int) -> dict[str, Any]:
    """What the stage does with one training set and one benchmark, filters and all."""
    from lib.artifacts.problems import write_problems
    from lib.params import preset_params
    from lib.problems.filters import index_benchmark
    from lib.problems.lengths import Rendering, token_counter
    from lib.problems.prepare import finish, gather, read_set
    from lib.problems.sources import read_rows
    from lib.problems.store import Drops
    from lib.prompts import prompt_format

    section = preset_params("tiny-cpu").prepare
    sft = section.sft.model_copy(update={"bare_answers": False, "numeric_only": True})
    lengths = section.lengths.model_copy(update={"prompt_percentile": 90.0})
    section = section.model_copy(
        update={
            "near_duplicate_similarity": 0.8,
            "contamination_ngram": 8,
            "validation_share": 0.1,
            "lengths": lengths,
        }
    )
    sources = [ingredient.source for ingredient in sft.sources]
    test = read_set(
        "test",
        sources,
        section,
        read=lambda _: read_rows(raw / "test.jsonl", raw=raw),
        folder=cache,
        drops=Drops(),
    )
    gathered = gather(
        "sft",
        sft,
        section,
        benchmarks=[index_benchmark("test", test.column("problem"), size=8)],
        read=lambda _: read_rows(raw / "train.jsonl", raw=raw),
        folder=cache,
    )
    made = finish(
        gathered,
        sft,
        section,
        max_seq_length=2048 * scale,
        seed=0,
        rendering=Rendering(
            prompt_format=prompt_format("r1_zero"), system="", bos_token="", eos_token="<eos>"
        ),
        count_tokens=token_counter(tokenizer),
    )
    write_problems(cache / "train.jsonl", made.train)
    metrics = made.metrics()
    return {
        "read": metrics["read"],
        "train": metrics["train"],
        "validation": metrics["validation"],
        "dropped": {reason: of["count"] for reason, of in metrics["dropped"].items()},
    }


def train_tokenizer(folder: Path) -> Path:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=4_000,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f" {word}" for word in vocabulary()], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class Memory:
    """Peak memory of this process while the block runs."""

    def __enter__(self) -> "Memory":
        self.before = self.peak = self.sample()
        self.ended = threading.Event()
        self.watch = threading.Thread(target=self.watching, daemon=True)
        self.watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.watch.join()

    def watching(self) -> None:
        while not self.ended.wait(0.02):
            self.peak = {name: max(self.peak[name], now) for name, now in self.sample().items()}

    @staticmethod
    def sample() -> dict[str, int]:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return {name: int(fields[name].split()[0]) for name in ("RssAnon", "RssFile")}

    def figures(self) -> dict[str, int]:
        return {
            "peak_own_mb": self.peak["RssAnon"] // 1000,
            "start_own_mb": self.before["RssAnon"] // 1000,
            "peak_mapped_mb": self.peak["RssFile"] // 1000,
        }


def page(results: dict[str, Any]) -> str:
    rows = "\n".join(
        f"| {name} | {case['read']:,} | {case['file_mb']} | {case['seconds']} | "
        f"{case['cpu_seconds']} | {case['peak_own_mb']} | {case['peak_mapped_mb']} |"
        for name, case in results["cases"].items()
    )
    dropped = results["cases"]["gsm8k_size"]["dropped"]
    told = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
    return TEMPLATE.format(rows=rows, told=told, **results["machine"])


TEMPLATE = """# Benchmark: prepare

`python -m tests.bench.prepare` writes this page and `results.json`. A case reads rows of GSM8K's
size (made up, see `rows.py`) from JSONL, drops exact and near duplicates (0.8) and what shares 8
words in a row with a benchmark of 1,319 problems, keeps numbers, counts tokens with a fast
tokenizer, cuts at the 90th percentile of prompts, holds a tenth back and writes the rest.

| case | rows | file, MB | seconds | CPU seconds | own memory, peak MB | mapped files, peak MB |
|---|---|---|---|---|---|---|
{rows}

Measured on {cores} cores, Python {python}. The cases `text_x4` and `text_x16` have as many rows
with texts so many times as long: memory of its own is for hashes and numbers per row and one batch
of text, and does not follow the file's size. Dropped of the first case: {told}.
"""

if __name__ == "__main__":
    main()
