"""External inputs of params: repositories of the Hub, files, plugins.

`make fetch` downloads every repository at its commit. A missing commit is looked up once and
written into params.yaml, so that a repeated run reads the same files. `check` then tries each input
before any stage runs, with the code that will use it. It imports only what params need: torch for a
plugin objective, datasets for a plugin adapter or pass rates.
"""

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lib.artifacts import replacing
from lib.core.errors import UserError
from lib.core.plugins import guarded, is_plugin
from lib.models.files import (
    GGUF,
    adapter_faults,
    model_faults,
    read_adapter,
    token_faults,
    weighted_modules,
)
from lib.models.hub import (
    COMMIT,
    Repository,
    dataset_repository,
    is_here,
    is_on_hub,
    kernel_repository,
    local_model,
    look_up,
    model_repository,
)
from lib.models.untrusted import check_folder
from lib.params import PARAMS_FILE, Params
from lib.params.data import (
    AnySource,
    GeneratorSource,
    HubSource,
    KnownSource,
    PathSource,
    Prepare,
    hub_splits,
)
from lib.params.load import round_trip
from lib.params.model import FLASH_KERNEL, Model
from lib.problems.rows import RowFault
from lib.prompts import PromptFormat, prompt_format, system_prompt
from lib.prompts.formats import ParsedCompletion, TaggedFormat, conversation
from lib.prompts.tools import find_tool
from lib.rewards.grading import Grading
from lib.rewards.rollout import task_fault


def repositories_of(params: Params) -> list[Repository]:
    """List every Hub repository in params, each once: data sets, model, attention kernel."""
    model = params.model
    splits = [split for source in params.prepare.every_source for split in hub_splits(source)]
    repositories = [dataset_repository(**split.place) for split in splits]
    if is_on_hub(model.name, model.revision):
        repositories.append(model_repository(model.name, model.revision))
    # `sdpa`, `flash_attention_2`, or the Hub's flash kernel as owner/name@commit. `commit` is ''
    # without "@": `kernel_repository` then takes the branch that transformers requests.
    attention, _, commit = model.attention.partition("@")
    # For `flash_attention_2`, transformers takes the package flash_attn if it is installed, and the
    # Hub's kernel otherwise.
    has_flash_attn = importlib.util.find_spec("flash_attn") is not None
    if attention == FLASH_KERNEL or (attention == "flash_attention_2" and not has_flash_attn):
        repositories.append(kernel_repository(commit))
    return list(dict.fromkeys(repositories))


def write_commits(params: Params, *, path: Path = PARAMS_FILE) -> list[str]:
    """Look up each missing commit and write it into the params file; return a message for each.

    A `known:` set becomes a `hub:` source, which has a key for its commit.

    Args:
        params: the content of the file at `path`.

    Raises:
        UserError: no such repository, or the Hub cannot be reached.
    """
    # Repository → its commit. One request per repository, although several sources may name it.
    commits = {
        repository: look_up(repository)[0]  # the second value is a size in bytes
        for repository in repositories_of(params)
        if not COMMIT.fullmatch(repository.revision)
    }
    if not commits:
        return []
    from dvc.utils.collections import apply_diff

    yaml = round_trip()  # a reader and writer that keeps comments and order
    content = yaml.load(path.read_text(encoding="utf-8"))
    model, prepare = content["model"], content["prepare"]
    for repository, commit in commits.items():
        if repository.kind == "model":
            model["revision"] = commit
        if repository.kind == "kernel":
            model["attention"] = f"{repository.name}@{commit}"
    entries = (*prepare["sft"]["sources"], *prepare["grpo"]["sources"], *prepare["benchmarks"])
    written = [*(entry["source"] for entry in entries), *prepare["sft"]["truth_from"]]
    for mapping, source in zip(written, params.prepare.every_source, strict=True):
        for split in hub_splits(source):
            if new_commit := commits.get(dataset_repository(**split.place)):
                # In place, so that comments stay.
                apply_diff(split.model_copy(update={"revision": new_commit}).model_dump(), mapping)
    with replacing(path) as partial_file:
        yaml.dump(content, partial_file)
    return [
        f"{repository.name} is at {commit}, now in {path}" for repository, commit in commits.items()
    ]


def input_problems(params: Params, *, asks_hub: bool = False) -> Iterator[str]:
    """Yield a message for each missing or incomplete input and faulty plugin, with the remedy.

    `_error_of` calls a function that checks an input, and yields its error message if it raises.

    Args:
        asks_hub: also ask the Hub for repositories that are not on this machine yet.
    """
    for repository in repositories_of(params):
        if not COMMIT.fullmatch(repository.revision):
            yield f"{repository.named_by}: `{repository}` has no commit yet; run `make fetch`"
        elif not is_here(repository):
            # An error of the Hub, such as no such repository, is more exact than "not here yet".
            errors = list(_error_of(look_up, repository)) if asks_hub else []
            yield from errors or [
                f"{repository.named_by}: `{repository}` is not here yet; run `make fetch`"
            ]
    model = params.model
    if model.name and not is_on_hub(model.name, model.revision):
        place = local_model(model.name)
        if place.is_dir() or place.suffix == GGUF:
            yield from (f"model.name: {fault}" for fault in model_faults(place))
            yield from (f"model.name: {fault}" for fault in token_faults(place))
            if place.is_dir():
                yield from (f"model.name: {fault}" for fault in _error_of(check_folder, place))
        else:
            yield f"model.name={model.name}: no such folder; a model of the Hub is owner/model"
    if params.sft.adapter:
        folder = Path(params.sft.adapter)
        faults = list(adapter_faults(folder, lora=model.lora, modules=_base_modules(model)))
        yield from (f"sft.adapter: {fault}" for fault in faults)
        # The reference policy of DPO is a second adapter in the same model.
        if params.dpo.init and not faults and read_adapter(folder).get("bias", "none") != "none":
            yield (
                f"sft.adapter: {folder} trains biases, and peft runs no second adapter beside it "
                "as DPO's reference; set dpo.init to [] or use an adapter without bias"
            )
    own_format = prompt_format(**params.prompt.rendering)
    yield from _error_of(system_prompt, params.prompt.system, prompt_format=own_format)
    if rates := params.prepare.grpo.difficulty.file:
        # Imported only if needed: it loads `datasets` and pyarrow.
        from lib.problems.selection import read_pass_rates

        yield from _error_of(read_pass_rates, Path(rates))
    prepare = params.prepare
    sft, grpo = prepare.sft.sources, prepare.grpo.sources
    keyed: list[tuple[str, AnySource, bool]] = [
        *((f"sft.sources[{n}]", each.source, True) for n, each in enumerate(sft)),
        *((f"grpo.sources[{n}]", each.source, False) for n, each in enumerate(grpo)),
        *((f"benchmarks ({each.name})", each.source, False) for each in prepare.benchmarks),
        *(("sft.truth_from", source, False) for source in prepare.sft.truth_from),
    ]
    for key, source, is_sft in keyed:
        places = [dataset_repository(**split.place) for split in hub_splits(source)]
        if not isinstance(source, GeneratorSource) and all(map(is_here, places)):
            yield from _error_of(
                _try_source, f"prepare.{key}", source, prepare, own_format, is_sft=is_sft
            )
    tool = find_tool(params.prompt.tool)
    if tool and is_plugin(params.prompt.tool):
        call = f"{tool.open}1 + 1{tool.close}"
        yield from _error_of(tool.result, call, name=params.prompt.tool)
    yield from _error_of(_try_plugin_rewards, params, own_format)
    loss, advantage = params.grpo.loss, params.grpo.advantage
    if is_plugin(loss) or is_plugin(advantage):
        # Imported only if needed: it loads torch.
        from lib.objectives import own

        if is_plugin(loss):
            yield from _error_of(own.try_loss, loss)
        if is_plugin(advantage):
            sizes = {"group_size": params.grpo.group_size, "num_rewards": len(params.reward.names)}
            yield from _error_of(own.try_advantage, advantage, **sizes)


def _base_modules(model: Model) -> set[str]:
    """Return the names of the base model's modules with a weight; an empty set if unknown yet."""
    if not model.name:  # a new tiny model, which is not made yet
        return set()
    on_hub = is_on_hub(model.name, model.revision)
    repository = model_repository(model.name, model.revision)
    folder = repository.folder if on_hub else local_model(model.name)
    return weighted_modules(folder)


def _error_of(trial: Callable[..., object], *arguments: Any, **settings: Any) -> Iterator[str]:
    """Call `trial`, and yield the message of its `UserError` if it raises one."""
    try:
        trial(*arguments, **settings)
    except UserError as error:
        yield error.message


def _try_source(
    key: str,
    source: PathSource | HubSource | KnownSource,
    prepare: Prepare,
    own_format: PromptFormat,
    *,
    is_sft: bool,
) -> None:
    """Read the first and last rows of a source's files as `prepare` does.

    Args:
        key: place of the source in params, for messages.
        own_format: a task's verdict is tried on these rows.
        is_sft: whether rows need what SFT needs.

    Raises:
        UserError: no such file, a row that would end `prepare`, or a task that accepts the answer
            to another row.
    """
    # Imported only if needed: they load `datasets`.
    from lib.problems.good_rows import good_rows
    from lib.problems.sources import edge_rows, source_label
    from lib.problems.store import Drops

    try:
        rows = list(edge_rows(source))
        if rows and is_plugin(getattr(source, "adapter", "")) and isinstance(rows[0][1], RowFault):
            row, fault = rows[0]
            raise UserError(f"its first row, {row.place}: {fault}")
        if prepare.bad_rows == "drop":
            # A faulty column ends `prepare` all the same; other bad rows are only counted there.
            rows = [
                (row, problem)
                for row, problem in rows
                if isinstance(problem, RowFault) and problem.reason == "undecidable"
            ]
            if not rows:
                return
        of_sft: dict[str, Any] = {"bare_answers": prepare.sft.bare_answers} if is_sft else {}
        if is_sft and prepare.sft.truth_from:
            good = [problem for _, problem in rows if not isinstance(problem, RowFault)]
            of_sft["truths"] = {problem.id: "0" for problem in good}
        if own_format.is_task:
            of_sft["task"] = partial(task_fault, prompt_format=own_format)
        checked = good_rows(
            iter(rows), Drops(), prepare.bad_rows, origin=source_label(source), **of_sft
        )
        problems = list(checked)
        others = [each for each in problems if each.reference != problems[0].reference]
        # A verdict that pays for the answer to another row would pay for anything.
        if own_format.is_task and others:
            wrong = dataclasses.replace(problems[0], reference=others[0].reference)
            answer = own_format.target(solution=wrong.solution, reference=wrong.reference)
            rollout = Grading(prompt_format=own_format).rollout(
                answer, reference=problems[0].reference, problem=wrong.problem
            )
            if rollout.answer_ok:
                raise UserError(
                    f"`right` of {own_format.name} accepts {answer[:80]!r}, the answer to another "
                    f"row than {wrong.problem[:80]!r}"
                )
    except UserError as error:
        raise UserError(f"{key}: {error.message}") from error


def _try_plugin_rewards(params: Params, own_format: PromptFormat) -> None:
    """Try a plugin format, then call each plugin reward on five kinds of completions.

    Args:
        own_format: the prompt format that `params.prompt` names.

    Raises:
        UserError: a plugin fails, or two rewards have one name.
    """
    if is_plugin(params.prompt.format):
        _try_plugin_format(params.prompt.format, own_format)
    reward = params.reward
    plugins = [name for name in reward.extra if is_plugin(name)]
    right, wrong = (
        own_format.target(solution="2 + 3 = 5", reference=answer) for answer in ("5", "7")
    )
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
    # Scoring calls the rewards: once as the stage `grade` does, and once with the further arguments
    # of GRPO's trainer, whose two logging functions do nothing here.
    grading.score(rollouts)
    log_functions = dict.fromkeys(("log_metric", "log_extra"), lambda *metric: None)
    grading.score(rollouts, trainer_state=None, **log_functions)


def _try_plugin_format(name: str, own_format: PromptFormat) -> None:
    """Try a plugin format: it has to parse an empty text, half a target, and its own target.

    Args:
        name: plugins/formats/file.py:name, for messages.
        own_format: the plugin.

    Raises:
        UserError: the plugin fails, or does not find the answer in its own target.
    """
    marks = own_format.marks
    if isinstance(own_format, TaggedFormat) and not (all(marks) and len(set(marks)) == 4):
        raise UserError(f"{name}: has the tags {list(marks)}; expected four different tags")
    with guarded(name, inputs="the solution '2 + 3 = 5' and its answer '5'"):
        target = own_format.target(solution="2 + 3 = 5", reference="5")
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
