"""Diagnose a checkpoint from its rollouts before GRPO trains it, for `make debug-rollouts`."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from lib.core.errors import visible
from lib.prompts import PromptFormat
from lib.report.text import shorten
from lib.rewards.functions import Grading
from lib.rewards.rollout import Rollout
from lib.training.phase.warning_signs import FORMAT_REMEDY, Limits

SHOWN_CHARS = 400
"""Printed characters per completion."""

MIN_COMPLETIONS = 4
"""Fewest completions per problem for a diagnosis."""

IDENTICAL_SHARE = 0.8
"""Share of identical completions from which a group counts as without contrast."""


RolloutGroup = Sequence[Rollout]
"""The scored completions of one problem."""


def counts_of(group: RolloutGroup) -> Counter[Sequence[int] | None]:
    """Return how often each distinct completion occurs, by its token ids."""
    return Counter(each.token_ids for each in group)


def has_signal(group: RolloutGroup) -> bool:
    """Return True if the rewards of a group differ; equal rewards give no gradient."""
    return len({each.reward for each in group}) > 1


def tag_tokens(
    tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat
) -> dict[str, list[str]]:
    """Return the tokens into which the tokenizer splits each tag of the format."""
    return {
        tag: tokenizer.convert_ids_to_tokens(tokenizer(tag, add_special_tokens=False)["input_ids"])
        for tag in prompt_format.marks
    }


def diagnose(
    groups: Sequence[RolloutGroup], *, written: Sequence[str], limits: Limits, temperature: float
) -> list[str]:
    """Return a sentence for each fault that would stop GRPO from learning, with the remedy.

    Returns one sentence if there is no fault, or if groups have fewer than `MIN_COMPLETIONS`
    completions and are not judged.

    Args:
        groups: completions by problem, as many of each.
        limits: thresholds of the reward and of lengths.
        written: tags to be written by a completion, without those already in the prompt.
        temperature: sampling temperature of the completions.
    """
    rows = [each for group in groups for each in group]
    size = len(groups[0])
    # Two or three samples are often equal by chance.
    if size < MIN_COMPLETIONS:
        few = f"{size} completions of a problem are too few to judge by"
        return [f"{few}; take N={MIN_COMPLETIONS} or more"]
    most = [max(counts_of(group).values()) for group in groups]
    alike = sum(count >= IDENTICAL_SHARE * size for count in most)
    signal = sum(map(has_signal, groups))
    cut = sum(each.truncated for each in rows)
    mean = statistics.fmean(each.reward for each in rows)
    faults = []
    # Only above half of the problems, since an easy problem is answered alike at any temperature.
    if 2 * alike > len(groups):
        faults.append(
            f"temperature too low: {max(most)} of {size} completions identical, and most of them "
            f"on {alike} of {len(groups)} problems; raise rollout.temperature (now {temperature:g})"
        )
    faults += [
        f"no completion writes {tag}: {FORMAT_REMEDY}"
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
    groups: Sequence[RolloutGroup],
    *,
    grading: Grading,
    tokens: Mapping[str, Sequence[str]],
    diagnosis: Sequence[str],
) -> Iterator[str]:
    """Format completions, their rewards and tags for a terminal, and the diagnosis at the end."""
    for group in groups:
        yield from _group_lines(group, grading)
    rows = [each for group in groups for each in group]
    yield f"All {len(rows)} completions of {len(groups)} problems"
    earned = [{**grading.by_name(each), "in total": each.reward} for each in rows]
    for name in earned[0]:
        values = [each[name] for each in earned]
        spread = statistics.pvariance(values)
        yield f"  reward {name}: mean {statistics.fmean(values):.3g}, variance {spread:.3g}"
    yield f"  groups with differing rewards: {sum(map(has_signal, groups))} of {len(groups)}"
    yield f"  distinct completions: {sum(map(len, map(counts_of, groups))) / len(rows):.0%}"
    cut = sum(each.truncated for each in rows)
    yield f"  cut off at the longest length: {cut} of {len(rows)}"
    yield "Tags: their tokens, and the number of completions that write them"
    for tag, pieces in tokens.items():
        split = "one token" if len(pieces) == 1 else f"{len(pieces)} tokens: {' | '.join(pieces)}"
        yield f"  {tag}  {split}; {sum(tag in each.completion for each in rows)} of {len(rows)}"
    yield "Verdict"
    yield from (f"  - {sentence}" for sentence in diagnosis)


def _group_lines(group: RolloutGroup, grading: Grading) -> Iterator[str]:
    """Format a problem, its completions with their rewards, and the variance of the rewards."""
    yield f"Problem: {group[0].problem}"
    yield f"Reference: {group[0].reference}"
    for number, each in enumerate(group, start=1):
        parts = " ".join(f"{name}={value:g}" for name, value in grading.by_name(each).items())
        yield (
            f"  [{number}] reward={each.reward:g} ({parts}) class={each.label} "
            f"tokens={each.num_tokens} ended_by={each.finish}"
        )
        text = visible(shorten(each.completion, SHOWN_CHARS))
        yield from (f"      {line}" for line in text.splitlines() or [""])
    variance = statistics.pvariance([each.reward for each in group])
    yield (
        f"  distinct {len(counts_of(group))} of {len(group)}, reward variance {variance:.3g}"
        f"{'' if has_signal(group) else ': no signal'}"
    )
    yield ""
