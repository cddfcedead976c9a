"""What `make fetch` brings: every repository that params.yaml names, each at a commit.

A model, set or attention kernel whose commit could not be cited has none in its preset. It is
looked up once and written into params.yaml, so that everyone who repeats the run reads the same
files.
"""

import importlib.util
from pathlib import Path

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
    model = params.model
    named = [repository_of(split) for source in sources_of(params) for split in hub_splits(source)]
    if is_on_hub(model.name, model.revision):
        named.append(model_repository(model.name, model.revision))
    kernel, _, commit = model.attention.partition("@")
    compiled = importlib.util.find_spec("flash_attn") is not None
    if kernel == FLASH_KERNEL or (kernel == "flash_attention_2" and not compiled):
        named.append(kernel_repository(commit))
    return list(dict.fromkeys(named))


def sources_of(params: Params) -> list[AnySource]:
    """Where params have their problems from: training sets, then benchmarks."""
    prepare = params.prepare
    training = [entry.source for entry in (*prepare.sft.sources, *prepare.grpo.sources)]
    return [*training, *(benchmark.source for benchmark in prepare.benchmarks)]


def write_commits(params: Params, *, path: Path = PARAMS_FILE) -> list[str]:
    """Look up each commit that params lack and write it down; returns a line for each.

    A set that is named by `known:` becomes a `hub:` source, which has a place for its commit.

    Raises:
        UserError: no such repository, or the Hub cannot be reached.
    """
    commits = {
        each: look_up(each)[0]
        for each in repositories_of(params)
        if not COMMIT.fullmatch(each.revision)
    }
    if not commits:
        return []
    yaml = round_trip()
    content = yaml.load(path.read_text(encoding="utf-8"))
    model, prepare = content["model"], content["prepare"]
    for each, commit in commits.items():
        if each.kind == "model":
            model["revision"] = commit
        if each.kind == "kernel":
            model["attention"] = f"{each.name}@{commit}"
    entries = (*prepare["sft"]["sources"], *prepare["grpo"]["sources"], *prepare["benchmarks"])
    for entry, source in zip(entries, sources_of(params), strict=True):
        for split in hub_splits(source):
            if new := commits.get(repository_of(split)):
                entry["source"] = split.model_copy(update={"revision": new}).model_dump()
    with replacing(path) as partial:
        yaml.dump(content, partial)
    return [f"{each.name} is at {commit}, now in {path}" for each, commit in commits.items()]
