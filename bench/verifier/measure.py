"""Accuracy and speed of one grader on the labelled sets, in this process."""

import resource
import statistics
import time
from pathlib import Path
from typing import Any

from bench.verifier.graders import GRADERS, Grader
from bench.verifier.hostile import hostile
from bench.verifier.references import labelled_row, rows_of

SHORT = 60
"""Characters up to which reference and answer count as short."""

Row = dict[str, Any]


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def graded(grader: Grader, rows: list[Row]) -> dict[str, Any]:
    """Return agreement with the labels, also of right and wrong answers apart, and speed."""
    start = cpu_s()
    verdicts = [(label, grader(*answer)) for *answer, label in map(labelled_row, rows)]
    used = cpu_s() - start
    missed = [row["id"] for row, (label, v) in zip(rows, verdicts, strict=True) if label != v]
    rates = {"agreement": verdicts}
    rates["TPR"], rates["TNR"] = ([x for x in verdicts if x[0] == label] for label in (True, False))
    shares = {
        name: round(sum(label == verdict for label, verdict in pairs) / len(pairs), 4)
        for name, pairs in rates.items()
        if pairs
    }
    speed = round(len(rows) / used)
    return {"n": len(rows), **shares, "answers_per_cpu_second": speed, "disagreements": missed}


def speed(grader: Grader, rows: list[Row]) -> dict[str, Any]:
    """Time every short bare answer once, after one answer to load the libraries."""
    short = [row for row in rows if row["form"] == "answer" and len(row["gold"]) <= SHORT]
    short = [row for row in short if len(row["pred"]) <= SHORT]
    grader(r"\sqrt{2}", "2^{1/2}", "answer", "")
    walls = []
    start = cpu_s()
    for row in short:
        began = time.perf_counter()
        grader(row["pred"], row["gold"], "answer", "")
        walls.append(1000 * (time.perf_counter() - began))
    used = cpu_s() - start
    return {
        "n": len(short),
        "answers_per_cpu_second": round(len(short) / used),
        "median_ms": round(statistics.median(walls), 3),
        "p99_ms": round(statistics.quantiles(walls, n=100)[98], 2),
    }


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Measure one grader in this process; hostile rows for reckon only.

    math-verify needs its alarm for them, and some end the process that grades them.
    """
    from reckon_verifier import counters

    grader, pairs = GRADERS[name], rows_of(folder / "grading" / "pairs.jsonl")
    sets = {"pairs": pairs}
    for row in rows_of(folder / "grading" / "outputs.jsonl"):
        sets.setdefault(row["source"].partition("/")[0], []).append(row)
    fresh = sorted((folder / "grading" / "fresh").glob("*.jsonl"))
    for path in (folder / "grading" / "written.jsonl", *fresh):
        sets[path.stem] = rows_of(path)
    results: dict[str, Any] = {"speed": speed(grader, pairs)}
    results["sets"] = {title: graded(grader, rows) for title, rows in sets.items()}
    if name == "reckon":
        results["hostile"] = hostile(rows_of(folder / "grading" / "hostile.jsonl"))
        results["counters"] = counters()
    return results
