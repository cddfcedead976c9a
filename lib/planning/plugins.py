"""Try, before anything is trained, the plugins that params name: each on one input of each kind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib.errors import UserError
from lib.grading.rewards import rewards_of
from lib.params import Params
from lib.params.data import PathSource
from lib.plugins import is_plugin, label, plugins_in
from lib.problems.places import RAW
from lib.problems.rows import RowFault
from lib.problems.sources import read_rows
from lib.prompts import PromptFormat, format_settings, prompt_format
from lib.verifier.rewards import STACKS

PROBLEM, REFERENCE, WORKING = "What is 2 + 3?", "5", "2 + 3 = 5"


def plugin_faults(params: Params) -> Iterator[str]:
    """One line for each plugin that does not keep its promise: which, on what, and what it gave."""
    settings = params.model_dump(mode="json")
    for trial in (_try_rewards, _try_adapters, _try_objectives):
        try:
            if any(plugins_in(settings)):
                trial(params)
        except UserError as error:
            yield error.message


def sample_completions(own_format: PromptFormat) -> dict[str, str]:
    """One completion of each kind that a reward meets."""
    right = own_format.target(solution=WORKING, reference=REFERENCE)
    return {
        "right": right,
        "wrong": own_format.target(solution=WORKING, reference="7"),
        "truncated": right[: len(right) // 2],
        "without the format": f"The answer is {REFERENCE}.",
        "empty": "",
    }


def _try_rewards(params: Params) -> None:
    names = [label(name) for name in (*STACKS[params.reward.stack], *params.reward.extra)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"reward.extra: two rewards are called `{twice.pop()}`; rename yours")
    own = [name for name in params.reward.extra if is_plugin(name)]
    own_format = prompt_format(**format_settings(params.prompt))
    completions = list(sample_completions(own_format).values())
    count = len(completions)
    only_own = params.reward.model_copy(update={"extra": tuple(own)})
    functions = rewards_of(
        only_own, prompt_format=own_format, max_completion_tokens=params.rollout.max_new_tokens
    )
    for function in functions[len(functions) - len(own) :]:
        columns = {
            "prompts": [own_format.prompt(PROBLEM, system="")] * count,
            "completions": [[{"role": "assistant", "content": text}] for text in completions],
            "completion_ids": [list(range(len(text))) for text in completions],
            "reference": [REFERENCE] * count,
            "problem": [PROBLEM] * count,
        }
        function(**columns)  # as `grade` calls it, and as GRPO does
        function(**columns, trainer_state=None, log_metric=_ignore, log_extra=_ignore)


def _ignore(name: str, values: Any) -> None:
    """Of a metric that a reward logs."""


def _try_adapters(params: Params) -> None:
    """On the first row of each source; those of the Hub are tried when they are read."""
    prepare = params.prepare
    training = (entry.source for entry in (*prepare.sft.sources, *prepare.grpo.sources))
    for source in (*training, *(benchmark.source for benchmark in prepare.benchmarks)):
        if not (isinstance(source, PathSource) and is_plugin(source.adapter)):
            continue
        if not Path(source.path).exists():
            continue  # said by `absent_inputs`
        columns = {str(field): column for field, column in source.columns.items()}
        rows = read_rows(Path(source.path), adapter=source.adapter, columns=columns, raw=RAW)
        row, problem = next(rows, (None, None))
        if row and isinstance(problem, RowFault):
            raise UserError(f"{source.adapter}: its first row, {row.place}: {problem}")


def _try_objectives(params: Params) -> None:
    loss, advantage = params.grpo.loss, params.grpo.advantage
    if not (is_plugin(loss) or is_plugin(advantage)):
        return  # what follows imports torch
    from lib.objectives.own import try_advantage, try_loss

    if is_plugin(loss):
        try_loss(loss)
    if is_plugin(advantage):
        try_advantage(advantage)
