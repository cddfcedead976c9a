"""External inputs of params: repositories of the Hub, files, plugins.

`make fetch` downloads every repository at its commit. A missing commit is looked up once and
written into params.yaml, so that a repeated run reads the same files. `check` then tries each input
before any stage runs, with the code that will use it. It imports only what params need: torch for a
plugin objective, datasets for a plugin adapter or pass rates.
"""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lib.artifacts import replacing
from lib.artifacts.hub import (
    COMMIT,
    Repository,
    dataset_repository,
    is_here,
    is_on_hub,
    kernel_repository,
    look_up,
    model_repository,
)
from lib.artifacts.models import FLASH_KERNEL, GGUF, adapter_faults, model_faults
from lib.core.errors import UserError
from lib.core.plugins import guarded, is_plugin, label
from lib.params import PARAMS_FILE, Params
from lib.params.data import PathSource, first_repeated, hub_splits
from lib.params.load import round_trip
from lib.problems.rows import RowFault
from lib.prompts import PromptFormat, prompt_format, system_prompt
from lib.prompts.formats import ParsedCompletion, TaggedFormat, conversation
from lib.rewards.functions import Grading


def repositories_of(params: Params) -> list[Repository]:
    """List every Hub repository in params, each once: data sets, model, attention kernel."""
    model = params.model
    splits = [split for source in params.prepare.every_source for split in hub_splits(source)]
    named = [dataset_repository(**split.place) for split in splits]
    if is_on_hub(model.name, model.revision):
        named.append(model_repository(model.name, model.revision))
    kernel, _, commit = model.attention.partition("@")
    # transformers prefers a compiled flash_attn, and takes the kernel of the Hub without one.
    compiled = importlib.util.find_spec("flash_attn") is not None
    if kernel == FLASH_KERNEL or (kernel == "flash_attention_2" and not compiled):
        named.append(kernel_repository(commit))
    # Unique in order: several sets can be splits of one repository.
    return list(dict.fromkeys(named))


def write_commits(params: Params, *, path: Path = PARAMS_FILE) -> list[str]:
    """Look up each missing commit and write it into the params file; return a line for each.

    A `known:` set becomes a `hub:` source, which has a key for its commit.

    Raises:
        UserError: no such repository, or the Hub cannot be reached.
    """
    # One request per repository, although several sources may name it.
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
    truths = prepare["sft"]["truth_from"]
    # The YAML nodes in the order of `every_source`, which the strict zip below relies on.
    places = [*((entry, "source") for entry in entries), *((truths, n) for n in range(len(truths)))]
    for (entry, key), source in zip(places, params.prepare.every_source, strict=True):
        for split in hub_splits(source):
            if new := commits.get(dataset_repository(**split.place)):
                entry[key] = split.model_copy(update={"revision": new}).model_dump()
    with replacing(path) as partial_file:
        # A round trip: comments and order of params.yaml stay.
        yaml.dump(content, partial_file)
    return [f"{each.name} is at {commit}, now in {path}" for each, commit in commits.items()]


def input_problems(params: Params, *, asks_hub: bool = False) -> Iterator[str]:
    """List missing or incomplete inputs and faulty plugins, each with the remedy.

    Args:
        asks_hub: also ask the Hub for repositories that are not here yet.
    """
    for repository in repositories_of(params):
        if not COMMIT.fullmatch(repository.revision):
            yield f"{repository.named_by}: `{repository}` has no commit yet; run `make fetch`"
        elif not is_here(repository):
            # The Hub's own error, such as no such repository, says more than "not here yet".
            errors = list(_error_of(look_up, repository)) if asks_hub else []
            yield from errors or [
                f"{repository.named_by}: `{repository}` is not here yet; run `make fetch`"
            ]
    model = params.model
    if model.name and not is_on_hub(model.name, model.revision):
        if Path(model.name).is_dir() or Path(model.name).suffix == GGUF:
            yield from (f"model.name: {fault}" for fault in model_faults(Path(model.name)))
        else:
            yield f"model.name={model.name}: no such folder; a model of the Hub is owner/model"
    if params.sft.adapter:
        lora, folder = model.lora, Path(params.sft.adapter)
        faults = adapter_faults(folder, rank=lora.rank, alpha=lora.alpha)
        yield from (f"sft.adapter: {fault}" for fault in faults)
    own_format = prompt_format(**params.prompt.rendering)
    yield from _error_of(system_prompt, params.prompt.system, prompt_format=own_format)
    if rates := params.prepare.grpo.difficulty.file:
        # Imported only if needed: it loads `datasets` and pyarrow.
        from lib.problems.selection import read_pass_rates

        yield from _error_of(read_pass_rates, Path(rates))
    for source in params.prepare.every_source:
        if isinstance(source, PathSource):
            yield from _error_of(_try_source, source)
    yield from _error_of(_try_rewards, params, own_format)
    loss, advantage = params.grpo.loss, params.grpo.advantage
    if is_plugin(loss) or is_plugin(advantage):
        from lib.objectives import own

        if is_plugin(loss):
            yield from _error_of(own.try_loss, loss)
        if is_plugin(advantage):
            sizes = {"group_size": params.grpo.group_size, "num_rewards": len(params.reward.names)}
            yield from _error_of(own.try_advantage, advantage, **sizes)


def _error_of(trial: Callable[..., object], *arguments: Any, **settings: Any) -> Iterator[str]:
    """Call `trial`, and yield the message of its `UserError` if it raises one."""
    try:
        trial(*arguments, **settings)
    except UserError as error:
        yield error.message


def _try_source(source: PathSource) -> None:
    """Check that a source's file exists, and try a plugin adapter on its first row."""
    if not Path(source.path).exists():
        raise UserError(f"prepare: {source.path} is missing; put it there or change params.yaml")
    if is_plugin(source.adapter):
        from lib.problems.sources import read_source

        # Only the first row is tried: `prepare` reads the others and counts their faults.
        row, problem = next(read_source(source), (None, None))
        if row and isinstance(problem, RowFault):
            raise UserError(f"{source.adapter}: its first row, {row.place}: {problem}")


def _try_rewards(params: Params, own_format: PromptFormat) -> None:
    """Try a plugin format, then call each plugin reward on five kinds of completions."""
    if is_plugin(params.prompt.format):
        _try_format(params.prompt.format, own_format)
    reward = params.reward
    plugins = [name for name in reward.extra if is_plugin(name)]
    names = [label(name) for name in reward.names]
    if plugins and (twice := first_repeated(names)):
        raise UserError(f"reward.extra: two rewards are called `{twice}`; rename yours")
    right, wrong = (
        own_format.target(solution="2 + 3 = 5", reference=answer) for answer in ("5", "7")
    )
    # The kinds: right and wrong in the format, truncated, outside the format, empty.
    texts = [right, wrong, right[: len(right) // 2], "The answer is 5.", ""]
    settings = reward.settings(max_completion_tokens=params.rollout.max_new_tokens)
    grading = Grading(plugins, prompt_format=own_format, **settings)
    rollouts = [
        grading.rollout(
            text,
            reference="5",
            problem="What is 2 + 3?",
            prompt=conversation("What is 2 + 3?", system=""),
            # Any ids will do: no tokenizer exists before `prepare`.
            token_ids=range(len(text)),
        )
        for text in texts
    ]
    logged = dict.fromkeys(("log_metric", "log_extra"), lambda *metric: None)
    # As `grade` calls rewards, then as GRPO does.
    grading.score(rollouts)
    grading.score(rollouts, trainer_state=None, **logged)


def _try_format(name: str, own_format: PromptFormat) -> None:
    """Try a plugin format: it has to parse its own target, a half target and an empty text."""
    marks = own_format.marks
    if isinstance(own_format, TaggedFormat) and not (all(marks) and len(set(marks)) == 4):
        raise UserError(f"{name}: has the tags {list(marks)}; expected four different tags")
    with guarded(name, inputs="the solution '2 + 3 = 5' and its answer '5'"):
        target = own_format.target(solution="2 + 3 = 5", reference="5")
    # The whole target last: the check below reads its `parsed`.
    for text in ("", target[: len(target) // 2], target):
        with guarded(name, inputs=repr(text)):
            parsed = own_format.parse(text)
            if not isinstance(parsed, ParsedCompletion):
                raise TypeError(f"parse gave {parsed!r}; expected a ParsedCompletion")
    if (parsed.answer, parsed.format_ok) != ("5", True):
        raise UserError(
            f"{name}: gave {parsed} for {target!r}, which SFT would teach; expected the answer '5' "
            "in the required form"
        )
