"""Measure on a GPU what this project has so far claimed of CPUs only.

PARTS, all by default, in the order of what a user wants to know first: do the presets take their
first steps, with their own attention and engines; a kill and its resumption; the gap between the
sampler's log-probs and the trainer's; an export that is loaded again; a step of GRPO beside TRL's;
the tests marked `gpu`. The table reports/gpu/<card>.md, with the card's name, is saved after each
row; the next run keeps what was measured and continues. The flash kernel is fetched, nothing else.
Exit code 1 where a row fails or is left for the next run, and without a GPU.
"""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from bench.gpu import rows
from bench.gpu.rows import Row, small
from lib.artifacts import read_json, versions, write_json
from lib.core.errors import UserError
from lib.core.process import installed_version
from lib.models.compat import VLLM_ENVIRONMENT
from lib.models.gpu import find_gpus, gpu_fault

OPTIONAL = ("vllm", "unsloth", "flash_attn")
"""Packages without which a row may be skipped."""

PARTS = {**rows.PARTS, "tests": lambda: {"tests": None}}

LIMIT_S = 600
"""Seconds for one row; a hang must not take the others' time."""


@click.command(help=__doc__)
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
@click.option("--minutes", default=60.0, show_default=True, help="No row begins after them.")
@click.option("--tiny", is_flag=True, help="Small models, on any device: that all of it runs.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("reports/gpu"),
    show_default=True,
    help="Gets the table, and its figures as JSON.",
)
def main(parts: tuple[str, ...], minutes: float, tiny: bool, out: Path) -> None:
    """Run the parts, row by row, and save the table after each row."""
    gpus = find_gpus()
    if not gpus and not tiny:
        raise UserError(
            "bench.gpu needs an NVIDIA GPU, and nvidia-smi lists none here; "
            "run it on a machine with one, after `make setup EXTRA=gpu`"
        )
    if fault := gpu_fault(gpus):
        raise UserError(fault)
    card = gpus[0].name if gpus else "CPU"
    about = {"gpu": card, "driver": gpus[0].driver if gpus else ""}
    about["versions"] = versions() | {name: installed_version(name) for name in OPTIONAL}
    path = out / f"{re.sub(r'[^a-z0-9]+', '-', card.lower())}.json"
    results = kept(path, about)
    deadline, bad = time.monotonic() + 60 * minutes, []
    with tempfile.TemporaryDirectory() as models:
        for part in parts or PARTS:
            for name, row in PARTS[part]().items():
                key = f"{part}: {name}"
                if tiny and row:
                    row = small(row)
                described = row.described() if row else {}
                if results.get(key, {}).get("row") == described and "figures" in results[key]:
                    continue
                if time.monotonic() >= deadline:
                    bad.append(f"{key}: left, run the same command again")
                    continue
                results[key] = {**outcome(row, Path(models)), "row": described}
                write_json(path, {"about": about, "rows": results})
                path.with_suffix(".md").write_text(table(about, results), encoding="utf-8")
                click.echo(table_row(key, results[key]))
                if reason := results[key].get("failed"):
                    bad.append(f"{key}: {reason}")
    if bad:
        raise UserError("\n  ".join([f"bench.gpu: {len(bad)} rows are missing:", *bad]))


HEADER = (
    "| row | s a step | of it generation | tokens a second | peak, GiB (planned) "
    "| on the card, GiB (planned) | sampler gap at the last step, nats | notes |\n"
    "|---|--:|--:|--:|--:|--:|--:|---|"
)


def table(about: dict[str, Any], results: dict[str, Any]) -> str:
    """Render all rows so far as Markdown, in the order of the parts."""
    order = list(PARTS)
    keys = sorted(results, key=lambda key: order.index(key.partition(": ")[0]))
    packages = [f"{name} {version}" for name, version in about["versions"].items() if version]
    title = f"# {about['gpu']}, driver {about['driver']}\n\n{', '.join(packages)}\n"
    return "\n".join([title, HEADER, *(table_row(key, results[key]) for key in keys), ""])


def table_row(key: str, result: dict[str, Any]) -> str:
    """Render one row of the table; a missing figure stays empty."""
    figures = result.get("figures", {})
    plan, gap = figures.get("planned", {}), figures.get("sampler_gap_at_last_step")

    def number(name: str) -> str:
        return f"{figures[name]:,.3g}" if name in figures else ""

    def gib(name: str) -> str:
        beside = f" ({plan[name] / 2**30:.3g})" if name in plan else ""
        return f"{figures[name] / 2**30:.3g}{beside}" if name in figures else ""

    notes = [f"{word}: {result[word]}" for word in ("failed", "skipped") if word in result]
    notes += [f"{name}: {value}" for name, value in result["row"].get("instead", {}).items()]
    if "tolerance" in figures:
        verdict = "alike" if figures["alike"] else "NOT alike"
        shown = "adapters {relative_difference:.1%} apart, at most {tolerance:.0%}: "
        notes.append(shown.format_map(figures) + verdict)
    for name, error in figures.get("errors", {}).items():
        notes.append(f"{name} off by {error:.2g} nats")
    notes += [figures["pytest"]] if "pytest" in figures else []
    gaps = f"{gap['mean']:.2g}" if gap else ""
    share = f"{figures['generation_share']:.0%}" if figures.get("generation_share") else ""
    cells = [key, number("seconds_per_step"), share, number("tokens_per_second")]
    cells += [gib("peak_memory_bytes"), gib("device_memory_bytes"), gaps, "; ".join(notes)]
    return f"| {' | '.join(cells)} |"


def kept(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return an earlier run's rows, of the same machine and packages."""
    if not path.is_file():
        return {}
    content = read_json(path)
    return dict(content["rows"]) if content["about"] == about else {}


def outcome(row: Row | None, models: Path) -> dict[str, Any]:
    """Return `figures`, or the reason for none: `skipped` or `failed`, with the end of stderr."""
    if row and row.skipped:
        return {"skipped": row.skipped}
    module = [sys.executable, "-m"]
    if row is None:
        # Only their files: others import packages missing on a machine without the lock.
        code, output, errors = run([*module, "pytest", "-q", "-m", "gpu", *gpu_tests()], text="")
        ran = {"figures": {"pytest": (output.splitlines() or [""])[-1]}}
        # pytest exits with 5 if it collects no test.
        return ran if code in {0, 5} else {"failed": "see `output`", "output": output[-4000:]}
    command = [*module, "bench.gpu.measure", str(models)]
    code, output, errors = run(command, text=json.dumps(dataclasses.asdict(row)))
    if code != 0:
        last = "".join(errors.strip().splitlines()[-1:]) or f"exit code {code}"
        reason = f"longer than {LIMIT_S} s" if code is None else last
        return {"failed": reason, "stderr": errors[-4000:]}
    return {"figures": json.loads(output.splitlines()[-1])}


def gpu_tests() -> list[str]:
    """List the files with tests marked `gpu`."""
    files = sorted(Path("tests").rglob("test_*.py"))
    return [str(file) for file in files if "pytest.mark.gpu" in file.read_text(encoding="utf-8")]


def run(command: list[str], *, text: str) -> tuple[int | None, str, str]:
    """Run a command; return exit code (None after a timeout), stdout and stderr."""
    environment = VLLM_ENVIRONMENT | os.environ | {"HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        command, env=environment, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(text, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its engines are processes too
            output, errors = process.communicate()
            return None, output, errors
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output, errors


if __name__ == "__main__":
    main()
