"""On a machine with a GPU: what this project claims of CPUs only, measured there.

PARTS, all by default, the most valuable first: a step of GRPO beside TRL's and Unsloth's, the first
steps of the presets, a kill and its resumption, log-probs per type, and the tests marked `gpu`.
Each row is written to reports/gpu as soon as it is there, and kept by the next run, which goes on
with the others. Nothing is fetched. Exit code 1 where a row fails or is left for the next run, and
without a GPU.
"""

import dataclasses
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from lib.artifacts import read_json, versions, write_json
from lib.engines.compat import VLLM_ENVIRONMENT
from lib.engines.gpu import find_gpus
from lib.errors import UserError
from tests.bench.gpu.rows import PARTS, Row, small

TESTS = "tests"
"""The last part."""

LIMIT_S = 300
"""Of one row; a hang must not take the others' time."""


@click.command(help=__doc__)
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS, TESTS]))
@click.option("--minutes", default=10.0, show_default=True, help="No row begins after them.")
@click.option("--tiny", is_flag=True, help="Small models, on any device: that all of it runs.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("reports/gpu"),
    show_default=True,
    help="Gets one JSON file for each part.",
)
def main(parts: tuple[str, ...], minutes: float, tiny: bool, out: Path) -> None:
    """Check."""
    gpus = find_gpus()
    if not gpus and not tiny:
        raise UserError(
            "gpu-check needs an NVIDIA GPU, and nvidia-smi lists none here; "
            "run it on a machine with one, after `make setup EXTRA=gpu`"
        )
    machine = {"gpu": gpus[0].name, "driver": gpus[0].driver} if gpus else {}
    about = {**machine, "versions": versions() | engine_versions()}
    deadline, bad = time.monotonic() + 60 * minutes, []
    with tempfile.TemporaryDirectory() as models:
        for part in parts or (*PARTS, TESTS):
            path = out / f"{part}.json"
            results = kept(path, about)
            rows = {TESTS: None} if part == TESTS else PARTS[part]()
            for name, row in rows.items():
                if tiny and row:
                    row = small(row)
                described = row.described() if row else {}
                if results.get(name, {}).get("row") == described and "figures" in results[name]:
                    continue
                if time.monotonic() >= deadline:
                    bad.append(f"{part}, {name}: left, run the same command again")
                    continue
                results[name] = {**outcome(row, Path(models)), "row": described}
                write_json(path, {"about": about, "rows": results})
                state = "failed" if "failed" in results[name] else next(iter(results[name]))
                click.echo(f"gpu-check part={part} row={name!r} {state} out={path}")
                if state == "failed":
                    bad.append(f"{part}, {name}: {results[name]['failed']}")
    if bad:
        raise UserError("\n  ".join([f"gpu-check: {len(bad)} rows are missing:", *bad]))


def engine_versions() -> dict[str, str]:
    """Of the packages that a row may be skipped for, where they are installed."""
    found = {}
    for name in ("vllm", "unsloth", "flash_attn"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def kept(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Rows that an earlier run measured on the same machine with the same packages."""
    if not path.is_file():
        return {}
    content = read_json(path)
    return dict(content["rows"]) if content["about"] == about else {}


def outcome(row: Row | None, models: Path) -> dict[str, Any]:
    """`figures`, or why there are none: `skipped` or `failed`, with the end of stderr."""
    if row and row.skipped:
        return {"skipped": row.skipped}
    module = [sys.executable, "-m"]
    if row is None:
        code, output, errors = run([*module, "pytest", "-q", "-m", "gpu"], text="")
        ran = {"figures": {"pytest": (output.splitlines() or [""])[-1]}}
        # 5: no test is there to be run.
        return ran if code in {0, 5} else {"failed": "see `output`", "output": output[-4000:]}
    command = [*module, "tests.bench.gpu.measure", str(models)]
    code, output, errors = run(command, text=json.dumps(dataclasses.asdict(row)))
    if code != 0:
        last = "".join(errors.strip().splitlines()[-1:]) or f"exit code {code}"
        reason = f"longer than {LIMIT_S} s" if code is None else last
        return {"failed": reason, "stderr": errors[-4000:]}
    return {"figures": json.loads(output.splitlines()[-1])}


def run(command: list[str], *, text: str) -> tuple[int | None, str, str]:
    """Exit code, stdout and stderr; None for a process that was ended for its time."""
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
