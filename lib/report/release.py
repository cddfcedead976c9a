"""The published release, `reports/release.json`, and the stages that are newer than it.

`make release` writes the file. Results belong to a release: at any other commit, pages and README
keep its numbers.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib.artifacts import hash_json, read_json
from lib.params.load import read_yaml

RELEASE, LOCK = Path("reports/release.json"), Path("dvc.lock")

CHECKED = Path("data/checked")
"""Output of `check`: of all outputs, only this one tells of code and not of results."""


def read_release(path: Path = RELEASE) -> dict[str, Any]:
    """Return {"version", "commit", "date", "device", "stages", "outputs", …}; {} without a file."""
    return dict(read_json(path)) if path.is_file() else {}


def project_version() -> str:
    """Return the version in pyproject.toml."""
    content = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))
    return str(content["project"]["version"])


def release_name(release: Mapping[str, Any]) -> str:
    """Return "release 1.0.0, commit ff85728d1b6b, AMD EPYC, AVX2"."""
    return f"release {release['version']}, commit {release['commit']}, {release['device']}"


def locked_outputs(lock: Mapping[str, Any]) -> dict[str, str]:
    """Return path → hash of every output in a dvc.lock."""
    return {
        out["path"]: out["md5"]
        for name in sorted(lock["stages"])
        for out in lock["stages"][name].get("outs", ())
    }


def stage_sources(lock: Mapping[str, Any]) -> dict[str, str]:
    """Return stage → hash of what it starts from: command, params, code and files of no stage.

    The outputs of other stages are left out: they differ by the CPU's rounding.
    """
    outs = [Path(path) for path in locked_outputs(lock)]

    def made(path: Path) -> bool:
        """Return True for an output, a file in one, or a folder that holds one."""
        return any(path.is_relative_to(out) or out.is_relative_to(path) for out in outs)

    sources = {}
    for name, stage in lock["stages"].items():
        deps = {dep["path"]: dep["md5"] for dep in stage.get("deps", ())}
        own = {
            path: md5
            for path, md5 in deps.items()
            if Path(path).is_relative_to(CHECKED) or not made(Path(path))
        }
        sources[name] = hash_json([stage["cmd"], stage.get("params"), own])
    return sources


def newer_stages(release: Mapping[str, Any], lock: Path = LOCK) -> list[str]:
    """List the stages of the last run whose code, params or raw data are not the release's."""
    sources = stage_sources(read_yaml(lock))
    return [name for name, own in sources.items() if release["stages"].get(name) != own]
