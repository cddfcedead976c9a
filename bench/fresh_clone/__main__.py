"""Time, disk and memory of README's commands in a fresh clone.

    python -m bench.fresh_clone
    python -m bench.fresh_clone --preset smollm2-135m

clones HEAD, downloads every package anew, runs the default or a preset on this machine, which
should be idle, writes the costs to results.json in this folder and prints README's sentence: a
quarter of an hour, an hour for the pretrained model.
"""

import contextlib
import itertools
import json
import os
import re
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import psutil

from lib.models.runtime import device_name
from tests.conftest import ROOT

RESULTS = Path(__file__).parent / "results.json"
DEFAULT = "tiny-cpu"


def used_gb(folder: Path) -> float:
    """Return the disk space of a folder in GB; a hard-linked file counts once."""
    return round(int(subprocess.check_output(["du", "-sB1", folder]).split()[0]) / 1e9, 2)


def taken_gb(log: str) -> float:
    """Return the size in GB of all wheels that pip downloaded, by its log."""
    units = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
    sizes = re.findall(r"Downloading \S+ \(([\d.]+) (kB|MB|GB)\)", log)
    return round(sum(float(size) * units[unit] for size, unit in sizes) / 1e9, 2)


def watch_memory(pid: int, peaks: list[float]) -> None:
    """Append the memory in GB of a process with its descendants, twice a second, until it ends."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        while parent.is_running():
            total = 0
            for process in (parent, *parent.children(recursive=True)):
                # A process may end while it is looked at.
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    # PSS: a page that n processes share counts one nth in each.
                    total += process.memory_full_info().pss
            peaks.append(total / 1e9)
            time.sleep(0.5)


def cost(command: str, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Run a shell command; return minutes (in all, of CPU, by DVC stage) and its peak memory."""
    before, start = os.times(), time.monotonic()
    begun: dict[str, float] = {}
    peaks = [0.0]
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        threading.Thread(target=watch_memory, args=(process.pid, peaks), daemon=True).start()
        assert process.stdout
        for line in process.stdout:
            click.echo(line, nl=False)
            if stage := re.match(r"Running stage '([\w@]+)'", line):
                begun[stage[1]] = time.monotonic()
    if process.returncode:
        raise click.ClickException(f"`{command}` ended with exit code {process.returncode}")
    after, end = os.times(), time.monotonic()
    cpu = sum(after[2:4]) - sum(before[2:4])
    # Each stage ends where the next one begins.
    times = [*begun.values(), end]
    return {
        "minutes": round((end - start) / 60, 1),
        "cpu_minutes": round(cpu / 60, 1),
        "peak_gb": round(max(peaks), 2),
        "stages": {
            name: round((stop - start) / 60, 2)
            for name, (start, stop) in zip(begun, itertools.pairwise(times), strict=True)
        },
    }


def sentence(measured: dict[str, Any]) -> str:
    """Return the costs in README's words."""
    setup, run = measured["setup"], measured["run"]
    return (
        f"{setup['download_gb']} GB of packages downloaded, {setup['disk_gb']} GB of disk for them "
        f"and {run['disk_gb']} GB for the run, at most {run['peak_gb']} GB of memory; the stages "
        f"took {run['cpu_minutes']} minutes of CPU time"
    )


@click.command()
@click.option("--preset", default=DEFAULT, show_default=True)
@click.option("--note", default="on an idle machine", show_default=True, help="What README says.")
def main(preset: str, note: str) -> None:
    """Measure a preset's commands in a fresh clone of HEAD."""
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch, "reckon")
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=clone, text=True).strip()
        # Without the threads and the environment of this process.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMP_", "MKL_", "ATEN_", "VIRTUAL_ENV"))
        } | {"PIP_CACHE_DIR": str(Path(scratch, "pip"))}
        setup = cost("make setup", clone, environment)
        if preset != DEFAULT:
            cost(f"make preset PRESET={preset} && make fetch", clone, environment)
        before = used_gb(clone)
        run = cost("make all", clone, environment)
        measured = {
            "commit": commit,
            "device": device_name(),
            "cores": len(os.sched_getaffinity(0)),
            "note": note,
            "setup": {
                "minutes": setup["minutes"],
                "download_gb": taken_gb((clone / ".venv/setup.log").read_text("utf-8")),
                "disk_gb": used_gb(clone / ".venv"),
            },
            "run": run | {"disk_gb": round(used_gb(clone) - before, 2)},
        }
    click.echo(f"README: Measured {note}: {sentence(measured)}")
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(results | {preset: measured}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
