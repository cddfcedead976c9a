"""What a checkpoint writes at the sampling settings of reinforcement, and what that means for it.

P problems, G completions each.
"""

import collections
import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from lib.artifacts.problems import Problem
from lib.engines.base import Engine, GeneratedCompletion, Sampling, encode
from lib.prompts import PromptFormat
from lib.training.warning_signs import Limits
from lib.verifier import grade

SHOWN_CHARS = 400
"""Characters of a completion that are printed."""

MOSTLY = 0.8
"""Share of a problem's completions that, being identical, leave a group without contrast."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredCompletion:
    """One completion as it was scored.

    Attributes:
        rewards: by function, unweighted.
        total: weighted sum.
        tags: of the format, those that occur.
    """

    completion: GeneratedCompletion
    rewards: Mapping[str, float]
    total: float
    tags: tuple[str, ...]
    label: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The completions of one problem."""

    problem: Problem
    samples: tuple[ScoredCompletion, ...]

    @property
    def num_identical(self) -> int:
        """How often the most frequent completion occurs."""
        texts = collections.Counter(each.completion.token_ids for each in self.samples)
        return max(texts.values())

    @property
    def num_distinct(self) -> int:
        """How many different completions there are."""
        return len({each.completion.token_ids for each in self.samples})

    @property
    def has_signal(self) -> bool:
        """Whether rewards differ, without which there is no gradient."""
        totals = [each.total for each in self.samples]
        return max(totals) - min(totals) > 0


def draw_groups(
    engine: Engine,
    problems: Sequence[Problem],
    *,
    prompt_format: PromptFormat,
    system: str,
    sampling: Sampling,
    rewards: Sequence[Callable[..., list[float]]],
    weights: Sequence[float],
) -> list[Group]:
    """Sample every problem and score what comes, through the signature that TRL calls."""
    prompts = [prompt_format.prompt(problem.problem, system=system) for problem in problems]
    groups = []
    for problem, prompt, completions in zip(
        problems, prompts, engine.generate(encode(engine.tokenizer, prompts), sampling), strict=True
    ):
        columns = {
            "prompts": [prompt] * len(completions),
            "completions": [[{"role": "assistant", "content": c.text}] for c in completions],
            "completion_ids": [list(c.token_ids) for c in completions],
            "reference": [problem.reference] * len(completions),
            "problem": [problem.problem] * len(completions),
        }
        values = {reward.__name__: reward(**columns) for reward in rewards}
        groups.append(
            Group(
                problem=problem,
                samples=tuple(
                    ScoredCompletion(
                        completion=completion,
                        rewards={name: scores[index] for name, scores in values.items()},
                        total=sum(
                            weight * scores[index]
                            for weight, scores in zip(weights, values.values(), strict=True)
                        ),
                        tags=tuple(tag for tag in prompt_format.marks if tag in completion.text),
                        label=grade(
                            completion.text,
                            reference=problem.reference,
                            prompt_format=prompt_format,
                            problem=problem.problem,
                        ).label,
                    )
                    for index, completion in enumerate(completions)
                ),
            )
        )
    return groups


def tag_tokens(
    tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat
) -> dict[str, list[str]]:
    """Each tag of the format as the tokens that it is made of."""
    return {
        tag: tokenizer.convert_ids_to_tokens(tokenizer(tag, add_special_tokens=False)["input_ids"])
        for tag in prompt_format.marks
    }


def verdicts(
    groups: Sequence[Group], *, written: Sequence[str], limits: Limits, temperature: float
) -> Iterator[str]:
    """What is wrong, in words, with the knob to turn; one line of praise where nothing is.

    Args:
        written: tags that a completion has to write itself; what the prompt opens is none of them.
        temperature: that the completions were samples at.
    """
    faults = list(_faults(groups, written=written, limits=limits, temperature=temperature))
    if faults:
        yield from faults
        return
    signal = sum(group.has_signal for group in groups)
    yield (
        f"nothing stands in the way of GRPO: rewards differ within {signal} of {len(groups)} groups"
    )


def _faults(
    groups: Sequence[Group], *, written: Sequence[str], limits: Limits, temperature: float
) -> Iterator[str]:
    samples = [each for group in groups for each in group.samples]
    size = len(groups[0].samples)
    same = [group for group in groups if group.num_identical >= MOSTLY * size]
    if 2 * len(same) > len(groups):
        yield (
            f"temperature too low: {max(group.num_identical for group in same)} of {size} "
            f"completions identical, and most of them on {len(same)} of {len(groups)} problems; "
            f"raise rollout.temperature (now {temperature:g})"
        )
    for tag in written:
        if not any(tag in each.tags for each in samples):
            yield f"no completion writes {tag}: SFT has not taught the format; raise sft.num_epochs"
    cut = sum(each.completion.truncated for each in samples)
    if 2 * cut >= len(samples):
        yield (
            f"{cut} of {len(samples)} completions run into rollout.max_new_tokens="
            f"{limits.max_new_tokens}; raise it, or train SFT until it learns to stop"
        )
    mean = statistics.fmean(each.total for each in samples)
    if mean <= limits.lowest + limits.near:
        yield (
            f"rewards are at the stack's minimum: mean {mean:.3g} of {limits.lowest:g} ... "
            f"{limits.highest:g}; nothing is earned, so that nothing can be reinforced"
        )
    if not any(group.has_signal for group in groups):
        yield (
            f"rewards are equal within every group (mean {mean:.3g}): no advantage, no gradient; "
            "raise grpo.group_size, or take problems that are solved sometimes (`make difficulty`)"
        )


def report_lines(
    groups: Sequence[Group], *, tokens: Mapping[str, Sequence[str]], judged: Sequence[str]
) -> Iterator[str]:
    """All of it for a terminal: each completion, sums over them, tags, verdict last."""
    for group in groups:
        yield from _group_lines(group)
    yield from _sums(groups, tags=list(tokens))
    yield "Tags as tokens"
    for tag, pieces in tokens.items():
        split = "one token" if len(pieces) == 1 else f"{len(pieces)} tokens: {' | '.join(pieces)}"
        yield f"  {tag}  {split}"
    yield "Verdict"
    yield from (f"  - {sentence}" for sentence in judged)


def _group_lines(group: Group) -> Iterator[str]:
    yield f"Problem: {group.problem.problem}"
    yield f"Reference: {group.problem.reference}"
    for number, each in enumerate(group.samples, start=1):
        parts = " ".join(f"{name}={value:g}" for name, value in each.rewards.items())
        length = len(each.completion.token_ids)
        yield (
            f"  [{number}] reward={each.total:g} ({parts}) class={each.label} tokens={length} "
            f"ended_by={each.completion.finish}"
        )
        text = each.completion.text
        cut = text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]} ..."
        yield from (f"      {_visible(line)}" for line in cut.splitlines() or [""])
    variance = statistics.pvariance([each.total for each in group.samples])
    yield (
        f"  distinct {group.num_distinct} of {len(group.samples)}, reward variance {variance:.3g}"
        f"{'' if group.has_signal else ': no signal'}"
    )
    yield ""


def _visible(text: str) -> str:
    """Control characters as escapes: a completion must not steer the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _sums(groups: Sequence[Group], *, tags: Sequence[str]) -> Iterator[str]:
    samples = [each for group in groups for each in group.samples]
    yield f"All {len(samples)} completions of {len(groups)} problems"
    for name in samples[0].rewards:
        values = [each.rewards[name] for each in samples]
        yield (
            f"  reward {name}: mean {statistics.fmean(values):.3g}, "
            f"variance {statistics.pvariance(values):.3g}"
        )
    totals = [each.total for each in samples]
    yield (
        f"  reward in total: mean {statistics.fmean(totals):.3g}, "
        f"variance {statistics.pvariance(totals):.3g}"
    )
    signal = sum(group.has_signal for group in groups)
    yield f"  groups with differing rewards: {signal} of {len(groups)}"
    distinct = sum(group.num_distinct for group in groups) / len(samples)
    yield f"  distinct completions: {100 * distinct:.0f} %"
    cut = sum(each.completion.truncated for each in samples)
    yield f"  cut off at the longest length: {cut} of {len(samples)}"
    for tag in tags:
        yield f"  with {tag}: {sum(tag in each.tags for each in samples)} of {len(samples)}"
