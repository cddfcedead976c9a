"""Sample a checkpoint at GRPO's settings: its completions, its success rate, and a diagnosis."""

import collections
import contextlib
import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from lib.artifacts.completions import GradedCompletion
from lib.artifacts.problems import Problem
from lib.engines.base import GeneratedCompletion, Sampling, encode, open_engine
from lib.grading.grade import grade_completions
from lib.params import Params
from lib.prompts import PromptFormat, prompt_format, saved_system
from lib.report.text import shorten, visible
from lib.rewards.functions import Grading
from lib.training.phase.warning_signs import Limits

SHOWN_CHARS = 400
"""Printed characters per completion."""

MIN_COMPLETIONS = 4
"""Fewest completions per problem for a diagnosis."""

IDENTICAL_SHARE = 0.8
"""Share of identical completions at which a group counts as without contrast."""


@dataclasses.dataclass(frozen=True)
class RolloutGroup:
    """The completions of one problem, as generated and, in the same order, as graded."""

    problem: Problem
    completions: Sequence[GeneratedCompletion]
    graded: Sequence[GradedCompletion]

    @property
    def counts(self) -> collections.Counter[tuple[int, ...]]:
        """The number of each distinct completion."""
        return collections.Counter(each.token_ids for each in self.completions)

    @property
    def has_signal(self) -> bool:
        """True if rewards differ; without that there is no gradient."""
        return len({each.reward for each in self.graded}) > 1


def rollout_groups(
    params: Params,
    checkpoint: Path,
    problems: Sequence[Problem],
    *,
    base: Path,
    num_completions: int,
) -> list[RolloutGroup]:
    """Sample completions of every problem and grade them as `grade` does, with params' rewards.

    Args:
        base: the base checkpoint: the weights below an adapter, and the system prompt.
    """
    rollout, reward = params.rollout, params.reward
    answer_format, longest = prompt_format(**params.prompt.rendering), rollout.max_new_tokens
    settings = reward.settings(max_completion_tokens=longest)
    grading = Grading(reward.names, reward.weights, prompt_format=answer_format, **settings)
    system = saved_system(base)
    prompts = [answer_format.prompt(each.problem, system=system) for each in problems]
    sampling = Sampling(
        **rollout.decoding,
        num_completions=num_completions,
        stop_strings=answer_format.stop_strings,
        seed=params.seed,
    )
    # The rollout engine, so that the samples are those that GRPO would see.
    sampler = open_engine(
        rollout.engine,
        checkpoint,
        base=base,
        **params.model.loading,
        batch_size=num_completions * len(problems),
    )
    # A vLLM engine holds its share of the GPU until it is closed.
    with contextlib.closing(sampler):
        sampled = sampler.generate(encode(sampler.tokenizer, prompts), sampling)
    return [
        RolloutGroup(
            problem, samples, [*grade_completions(problem, prompt, samples, grading=grading)]
        )
        for problem, prompt, samples in zip(problems, prompts, sampled, strict=True)
    ]


def tag_tokens(
    tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat
) -> dict[str, list[str]]:
    """Return the tokens of each tag of the format."""
    return {
        tag: tokenizer.convert_ids_to_tokens(tokenizer(tag, add_special_tokens=False)["input_ids"])
        for tag in prompt_format.marks
    }


def diagnose(
    groups: Sequence[RolloutGroup], *, written: Sequence[str], limits: Limits, temperature: float
) -> list[str]:
    """Describe each fault with the param to change, or confirm in one line that there is none.

    Fewer than `MIN_COMPLETIONS` completions of a problem are not judged.

    Args:
        written: tags that a completion has to write itself, without the tag that the prompt opens.
        temperature: sampling temperature of the completions.
    """
    rows = [each for group in groups for each in group.graded]
    size = len(groups[0].graded)
    # Two or three samples are often equal by chance.
    if size < MIN_COMPLETIONS:
        few = f"{size} completions of a problem are too few to judge by"
        return [f"{few}; take N={MIN_COMPLETIONS} or more"]
    most = [max(group.counts.values()) for group in groups]
    alike = sum(count >= IDENTICAL_SHARE * size for count in most)
    signal = sum(group.has_signal for group in groups)
    cut = sum(each.truncated for each in rows)
    mean = statistics.fmean(each.reward for each in rows)
    faults = []
    # More than half of the problems: single easy ones are answered alike at any temperature.
    if 2 * alike > len(groups):
        faults.append(
            f"temperature too low: {max(most)} of {size} completions identical, and most of them "
            f"on {alike} of {len(groups)} problems; raise rollout.temperature (now {temperature:g})"
        )
    faults += [
        f"no completion writes {tag}: {limits.format_remedy}"
        for tag in written
        if not any(tag in each.completion for each in rows)
    ]
    if 2 * cut >= len(rows):
        faults.append(
            f"{cut} of {len(rows)} completions run into rollout.max_new_tokens="
            f"{limits.max_new_tokens}; raise it, or train SFT until it learns to stop"
        )
    if mean <= limits.lowest + limits.near:
        faults.append(
            f"rewards are at the stack's minimum: mean {mean:.3g} of {limits.lowest:g} ... "
            f"{limits.highest:g}; no completion earns more, so that nothing is reinforced"
        )
    if not signal:
        faults.append(
            f"rewards are equal within every group (mean {mean:.3g}): no advantage, no gradient; "
            "raise grpo.group_size, or take problems that are solved sometimes (`make difficulty`)"
        )
    praise = f"rewards differ within {signal} of {len(groups)} groups"
    return faults or [f"nothing stands in the way of GRPO: {praise}"]


def report_lines(
    groups: Sequence[RolloutGroup], *, tokens: Mapping[str, Sequence[str]], diagnosis: Sequence[str]
) -> Iterator[str]:
    """Format everything for a terminal: completions, sums, tags, the diagnosis last."""
    for group in groups:
        yield from _group_lines(group)
    rows = [each for group in groups for each in group.graded]
    yield f"All {len(rows)} completions of {len(groups)} problems"
    rewards = {name: [each.rewards[name] for each in rows] for name in rows[0].rewards}
    for name, values in {**rewards, "in total": [each.reward for each in rows]}.items():
        spread = statistics.pvariance(values)
        yield f"  reward {name}: mean {statistics.fmean(values):.3g}, variance {spread:.3g}"
    yield f"  groups with differing rewards: {sum(g.has_signal for g in groups)} of {len(groups)}"
    yield f"  distinct completions: {sum(len(g.counts) for g in groups) / len(rows):.0%}"
    cut = sum(each.truncated for each in rows)
    yield f"  cut off at the longest length: {cut} of {len(rows)}"
    yield "Tags: their tokens, and the number of completions that write them"
    for tag, pieces in tokens.items():
        split = "one token" if len(pieces) == 1 else f"{len(pieces)} tokens: {' | '.join(pieces)}"
        yield f"  {tag}  {split}; {sum(tag in each.completion for each in rows)} of {len(rows)}"
    yield "Verdict"
    yield from (f"  - {sentence}" for sentence in diagnosis)


def _group_lines(group: RolloutGroup) -> Iterator[str]:
    yield f"Problem: {group.problem.problem}"
    yield f"Reference: {group.problem.reference}"
    for generated, each in zip(group.completions, group.graded, strict=True):
        parts = " ".join(f"{name}={value:g}" for name, value in each.rewards.items())
        yield (
            f"  [{each.sample + 1}] reward={each.reward:g} ({parts}) class={each.label} "
            f"tokens={each.num_tokens} ended_by={generated.finish}"
        )
        text = visible(shorten(each.completion, SHOWN_CHARS))
        yield from (f"      {line}" for line in text.splitlines() or [""])
    variance = statistics.pvariance([each.reward for each in group.graded])
    yield (
        f"  distinct {len(group.counts)} of {len(group.graded)}, reward variance {variance:.3g}"
        f"{'' if group.has_signal else ': no signal'}"
    )
    yield ""
