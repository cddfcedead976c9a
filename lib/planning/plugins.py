"""Try, before anything is trained, the plugins that params name: each on one input of each kind."""

from collections.abc import Iterator
from pathlib import Path

from lib.errors import UserError
from lib.params import Params
from lib.params.data import PathSource, first_repeated
from lib.planning.fetch import sources_of
from lib.plugins import is_plugin, label, plugins_in
from lib.problems.places import RAW
from lib.problems.rows import RowFault
from lib.problems.sources import read_rows
from lib.prompts import format_settings, prompt_format
from lib.verifier.rewards import STACKS, build_rewards

PROBLEM, REFERENCE, WORKING = "What is 2 + 3?", "5", "2 + 3 = 5"


def plugin_faults(params: Params) -> Iterator[str]:
    """One line for each plugin that does not keep its promise: which, on what, and what it gave."""
    if not any(plugins_in(params.model_dump(mode="json"))):
        return
    for trial in (_try_rewards, _try_adapters, _try_objectives):
        try:
            trial(params)
        except UserError as error:
            yield error.message


def _try_rewards(params: Params) -> None:
    """On one completion of each kind that a reward meets."""
    reward, own_format = params.reward, prompt_format(**format_settings(params.prompt))
    names = tuple(label(name) for name in (*STACKS[reward.stack], *reward.extra))
    if twice := first_repeated(names):
        raise UserError(f"reward.extra: two rewards are called `{twice}`; rename yours")
    right = own_format.target(solution=WORKING, reference=REFERENCE)
    wrong = own_format.target(solution=WORKING, reference="7")
    texts = [right, wrong, right[: len(right) // 2], f"The answer is {REFERENCE}.", ""]
    columns = {
        "prompts": [own_format.prompt(PROBLEM, system="")] * len(texts),
        "completions": [[{"role": "assistant", "content": text}] for text in texts],
        "completion_ids": [list(range(len(text))) for text in texts],
        "reference": [REFERENCE] * len(texts),
        "problem": [PROBLEM] * len(texts),
    }
    settings = reward.settings(max_completion_tokens=params.rollout.max_new_tokens)
    own = [name for name in reward.extra if is_plugin(name)]
    for function in build_rewards(own, prompt_format=own_format, **settings):
        function(**columns)  # as `grade` calls it, and as GRPO does
        function(**columns, trainer_state=None, log_metric=_ignore, log_extra=_ignore)


def _ignore(*metric: object) -> None:
    """What a reward logs."""


def _try_adapters(params: Params) -> None:
    """On the first row of each source; those of the Hub are tried when they are read."""
    for source in sources_of(params):
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
