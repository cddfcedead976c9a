"""What `make fetch` brings: every repository that params.yaml names, each at a commit.

A model, set or attention kernel whose commit could not be cited has none in its preset. It is
looked up once and written into params.yaml, so that everyone who repeats the run reads the same
files.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lib.artifacts import replacing
from lib.artifacts.hub import (
    COMMIT,
    Repository,
    is_on_hub,
    kernel_repository,
    look_up,
    model_repository,
)
from lib.params import PARAMS_FILE
from lib.params.model import FLASH_KERNEL
from lib.params.presets import round_trip
from lib.params.schema import Params
from lib.problems.known import AnySource, hub_splits, repository_of


def repositories_of(params: Params) -> list[Repository]:
    """Every repository that params name, each once."""
    splits = (split for source in sources_of(params) for split in hub_splits(source))
    named = dict.fromkeys(repository_of(split) for split in splits)
    model = params.model
    if is_on_hub(model.name, model.revision):
        named[model_repository(model.name, model.revision)] = None
    kernel, _, commit = model.attention.partition("@")
    compiled = importlib.util.find_spec("flash_attn") is not None
    if kernel == FLASH_KERNEL or (kernel == "flash_attention_2" and not compiled):
        named[kernel_repository(commit)] = None
    return list(named)


def sources_of(params: Params) -> Iterator[AnySource]:
    """Where params have their problems from: training sets, then benchmarks."""
    prepare = params.prepare
    yield from (entry.source for entry in (*prepare.sft.sources, *prepare.grpo.sources))
    yield from (benchmark.source for benchmark in prepare.benchmarks)


def write_commits(params: Params, *, path: Path = PARAMS_FILE) -> list[str]:
    """Look up each commit that params lack and write it down; returns a line for each.

    A set that is named by `known:` becomes a `hub:` source, which has a place for its commit.

    Raises:
        UserError: no such repository, or the Hub cannot be reached.
    """
    unpinned = [each for each in repositories_of(params) if not COMMIT.fullmatch(each.revision)]
    if not unpinned:
        return []
    commits = {(each.kind, each.name): look_up(each)[0] for each in unpinned}
    yaml = round_trip()
    content = yaml.load(path.read_text(encoding="utf-8"))
    model = content["model"]
    if ("model", model["name"]) in commits:
        model["revision"] = commits["model", model["name"]]
    if ("kernel", FLASH_KERNEL) in commits:
        model["attention"] = f"{FLASH_KERNEL}@{commits['kernel', FLASH_KERNEL]}"
    for entry, source in zip(_entries(content), sources_of(params), strict=True):
        for split in hub_splits(source):
            if not split.revision:
                commit = commits["dataset", split.hub]
                entry["source"] = split.model_copy(update={"revision": commit}).model_dump()
    with replacing(path) as partial:
        yaml.dump(content, partial)
    return [f"{name} is at {commit}, now in {path}" for (_, name), commit in commits.items()]


def _entries(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    prepare = content["prepare"]
    yield from (*prepare["sft"]["sources"], *prepare["grpo"]["sources"], *prepare["benchmarks"])
