"""The cost of `prepare`: rows like those of MATH, for SFT and GRPO, without leaks.

    python -m bench.prepare [--rows 100000]

Writes bench/prepare.json: CPU-seconds and peak memory of the stage with exact copies dropped, and
with near copies too. Each hundred rows have two near copies, a copy and a leak of the benchmark.
The digest of the sets changes only with what `prepare` writes.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from lib.params import compose_preset

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_suffix(".json")
SYLLABLES = "al be cor du en fi gra ho in ja ku lo mi nor os pi qua ra sel ti um vex wy zo"
SUBJECTS = ("Algebra", "Geometry", "Number Theory", "Precalculus")


def rows(seed: int, count: int) -> Iterator[dict[str, str]]:
    """Yield rows with MATH's columns: 35 words in a problem, 90 in a solution, and formulas."""
    random_ = random.Random(seed)
    words = [
        "".join(random_.choices(SYLLABLES.split(), k=random_.randint(1, 3))) for _ in range(3000)
    ]

    def text(length: int) -> str:
        """Join words, of which each tenth is a formula."""
        a, b = random_.randint(2, 999), random_.randint(2, 99)
        formulas = (rf"$\frac{{{a}}}{{{b}}}x + {b}$", f"$x^2 - {a}x + {b} = 0$", str(a))
        pools = random_.choices((words, formulas), (9, 1), k=length)
        return " ".join(random_.choice(pool) for pool in pools)

    for _ in range(count):
        a, b = random_.randint(-999, 9999), random_.randint(2, 99)
        answer = random_.choice(
            (str(a), str(b), rf"\frac{{{b}}}{{{a or 1}}}", rf"{b}\sqrt{{{abs(a)}}}", f"({a}, {b})")
        )
        yield {
            "problem": f"{text(random_.randint(10, 60))}?",
            "level": f"Level {random_.randint(1, 5)}",
            "type": random_.choice(SUBJECTS),
            "solution": f"{text(random_.randint(20, 160))} so it is $\\boxed{{{answer}}}$.",
        }


def write_raw(raw: Path, count: int) -> None:
    """Write a training file with near copies, copies and leaks, and a benchmark of 500 rows."""
    test, made = list(rows(1, 500)), list(rows(0, count))
    for place in range(100, count, 100):
        earlier = made[place - 100]
        for each, problem in enumerate(
            (
                f"{earlier['problem']} Now",
                f"Now {earlier['problem']}",
                earlier["problem"],
                f"{made[place]['problem']} {test[place % len(test)]['problem']}",
            )
        ):
            made[place + each] |= {"problem": problem, "solution": earlier["solution"]}
    for name, lines in (("math", made), ("test", test)):
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (raw / f"{name}.jsonl").write_text(text, encoding="utf-8")


def measure(folder: Path, similarity: float) -> dict[str, object]:
    """Run the stage; return its CPU-seconds, peak memory in MB, sizes, and the sets' digest."""
    out = folder / f"out-{similarity}"
    sources = [{"weight": "all", "source": {"path": "data/raw/math.jsonl"}}]
    prepare = {
        "near_duplicate_similarity": similarity,
        "contamination_ngram": 8,
        "sft": {"sources": sources},
        "grpo": {"sources": sources},
        "benchmarks": [{"name": "held_out", "source": {"path": "data/raw/test.jsonl"}}],
    }
    changes = {
        "prepare": prepare,
        "model": {"max_seq_length": 2048},
        "evaluate": {"benchmarks": ["held_out"]},
    }
    out.mkdir()
    (out / "params.yaml").write_text(compose_preset("tiny-cpu", changes=changes), encoding="utf-8")
    (out / "code.json").write_text("{}")
    names = ("problems", "base", "metrics", "provenance")
    options = [part for name in names for part in (f"--{name}", str(out / name))]
    options += ["--params", str(out / "params.yaml"), "--code", str(out / "code.json")]
    process = subprocess.Popen(
        [sys.executable, "-m", "stages.prepare", *options],
        stdout=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("prepare failed")
    files = sorted(path for path in (out / "problems").rglob("*") if path.is_file())
    content = hashlib.sha256(b"".join(path.read_bytes() for path in files))
    return {
        "near_duplicate_similarity": similarity,
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": round(used.ru_maxrss * 1024 / 1e6),
        "grpo_rows": json.loads((out / "metrics").read_text("utf-8"))["num_grpo"],
        "sha256": content.hexdigest(),
    }


@click.command(help=__doc__)
@click.option("--rows", "count", default=100_000, help="Rows of the training file.")
def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (raw := folder / "data/raw").mkdir(parents=True)
        write_raw(raw, count)
        # The stage looks for its lock file and for data/raw in the working directory.
        (folder / "requirements").symlink_to(ROOT / "requirements")
        results = []
        for similarity in (1.0, 0.8):
            results.append(measure(folder, similarity))
            print(results[-1], flush=True)
    RESULTS.write_text(json.dumps({"rows": count, "runs": results}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
