"""Audit a reward before training: does anything earn as much as the right answer?

REWARD is a stack, such as tiny, or a plugin, plugins/rewards/file.py:name. Exits with 1 if an
attempt earns as much as the right answer, if a right answer earns less than another one, or if
rewards depend on the order of a batch.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_params


@click.command(help=__doc__)
@reads_params
@click.argument("reward")
@reads("--set", "data/problems/sft.jsonl", "the problems, as `prepare` writes them")
@click.option("--limit", default=200, show_default=True, help="Most problems; 0 for all.")
@click.option("--prompt-format", help="Write answers in this format; default: that in params.")
@click.pass_context
def main(
    context: click.Context,
    params_file: Path,
    reward: str,
    set: Path,
    limit: int,
    prompt_format: str | None,
) -> None:
    """Print what right answers and other texts earn."""
    params = load_params(params_file)
    from lib import prompts
    from lib.artifacts.problems import excerpt, read_problems
    from lib.core.plugins import is_plugin
    from lib.report.text import Table, table_lines
    from lib.rewards.audit import audit
    from lib.rewards.functions import STACKS, rewards_of
    from lib.rewards.grading import Grading

    if not is_plugin(reward) and reward not in STACKS:
        raise click.UsageError(f"no stack `{reward}`; there are {', '.join(STACKS)}")
    names = (reward,) if is_plugin(reward) else rewards_of(reward)
    rendering = params.prompt.rendering | ({"name": prompt_format} if prompt_format else {})
    grading = Grading(
        names,
        # The run's own stack has its weights; any other reward weighs 1.
        params.reward.weights[: len(names)] if reward == params.reward.stack else (),
        prompt_format=prompts.prompt_format(**rendering),
        **params.reward.settings(max_completion_tokens=params.rollout.max_new_tokens),
    )
    problems = list(read_problems(set))[: limit or None]
    if len(problems) < 2:
        raise click.UsageError(f"{set}: expected two problems or more")
    result = audit(problems, grading)
    rows = [("the right answer", f"{result.best:.4g} at most", str(len(result.unlearnable)))]
    rows += [
        (name, f"{mean:.4g}", str(len(loopholes)))
        for name, (mean, loopholes) in result.attempts.items()
    ]
    header = ("completion", "mean reward", "problems at fault")
    click.echo("\n".join(table_lines(Table(f"{reward} on {set}", header, tuple(rows)))))
    for problem, value in result.unlearnable[:5]:
        click.echo(f"the right answer earns {value:.4g}: {excerpt(problem.reference)}")
    for name, (_, loopholes) in result.attempts.items():
        for each in loopholes[:1]:
            texts = f"{excerpt(each.completion)}, reference {excerpt(each.reference)}"
            click.echo(f"{name}: as much as the right answer for {texts}")
    if not result.is_stable:
        click.echo("rewards depend on the order of the batch")
    click.echo(f"{1000 * result.seconds:.2f} ms a completion")
    context.exit(not result.passed)
