"""What a suite measured, in the files of its folder."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

Quartiles = list[float]
"""Median, first and third quartile."""


def quartiles(values: Sequence[float]) -> Quartiles:
    """Of two values or more."""
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return [middle, first, third]


def paired(values: Sequence[float], others: Sequence[float]) -> Quartiles:
    """Of the ratios of measurements that were made in turns."""
    return quartiles([value / other for value, other in zip(values, others, strict=True)])


def shown(ratio: Quartiles) -> str:
    """For a table."""
    return "{:.2f} ({:.2f}–{:.2f})".format(*ratio)


def machine(*packages: str) -> dict[str, str]:
    """What the figures depend on beside the code."""
    return {
        "machine": f"{platform.machine()} CPU with {os.cpu_count()} cores",
        **{package: version(package) for package in packages},
    }


def read(folder: Path) -> dict[str, Any]:
    """The committed results."""
    return dict(json.loads((folder / "results.json").read_text(encoding="utf-8")))


def write(folder: Path, results: dict[str, Any], render: Callable[[dict[str, Any]], str]) -> None:
    """Both files; prints the ratios that were there beside the new ones."""
    before = read(folder)["ratios"]
    for name, ratio in results["ratios"].items():
        was = shown(before[name]) if name in before else "none"
        print(f"{name}: committed {was}, now {shown(ratio)}")  # noqa: T201
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(render(results), encoding="utf-8")
