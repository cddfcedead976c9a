"""Diagnose a checkpoint from its rollouts before GRPO trains it, for `./reckon debug-rollouts`."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from lib.core.errors import shorten, visible
from lib.prompts import PromptFormat
from lib.rewards.grading import Grading
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
    """Return tag → tokens, as the tokenizer splits it: {"<answer>": ["<", "answer", ">"]}."""
    return {
        tag: tokenizer.convert_ids_to_tokens(tokenizer(tag, add_special_tokens=False)["input_ids"])
        for tag in prompt_format.marks
    }


def diagnose(
    groups: Sequence[RolloutGroup], *, written: Sequence[str], limits: Limits, temperature: float
) -> list[str]:
    """Return a sentence for each fault that would stop GRPO from learning, with the remedy.

    Without a fault, return one sentence on the rewards. With fewer than `MIN_COMPLETIONS`
    completions per problem, return one sentence that asks for more.

    Args:
        groups: [P][G] scored completions of each problem.
        written: the tags that a completion has to write, without those already in the prompt.
        limits: ends of the reward's range, and longest completion.
        temperature: sampling temperature of the completions.
    """
    rows = [each for group in groups for each in group]
    size = len(groups[0])
    # Two or three samples are often equal by chance.
    if size < MIN_COMPLETIONS:
        few = f"{size} completions of a problem are too few to judge by"
        return [f"{few}; take --n {MIN_COMPLETIONS} or more"]
    # [P]: copies of the most frequent completion of each problem.
    copies = [max(counts_of(group).values()) for group in groups]
    num_identical = sum(count >= IDENTICAL_SHARE * size for count in copies)
    num_signal = sum(map(has_signal, groups))
    num_truncated = sum(each.truncated for each in rows)
    mean = statistics.fmean(each.reward for each in rows)
    faults = []
    # Only if most problems are like this: an easy one has one answer at any temperature.
    if 2 * num_identical > len(groups):
        faults.append(
            f"temperature too low: {max(copies)} of {size} completions identical, and most of them "
            f"on {num_identical} of {len(groups)} problems; raise rollout.temperature "
            f"(now {temperature:g})"
        )
    faults += [
        f"no completion writes {tag}: {FORMAT_REMEDY}"
        for tag in written
        if not any(tag in each.completion for each in rows)
    ]
    if 2 * num_truncated >= len(rows):
        faults.append(
            f"{num_truncated} of {len(rows)} completions run into rollout.max_new_tokens="
            f"{limits.max_new_tokens}; raise it, or train SFT until it learns to stop"
        )
    if mean <= limits.lowest + limits.near:
        faults.append(
            f"rewards are at the stack's minimum: mean {mean:.3g} of {limits.lowest:g} ... "
            f"{limits.highest:g}; hardly any completion earns more, so that little is reinforced"
        )
    if not num_signal:
        faults.append(
            f"rewards are equal within every group (mean {mean:.3g}): no advantage, no gradient; "
            "raise grpo.group_size, or take problems solved sometimes (`./reckon difficulty`)"
        )
    if faults:
        return faults
    signal = f"rewards differ within {num_signal} of {len(groups)} groups"
    return [f"nothing stands in the way of GRPO: {signal}"]


def report_lines(
    groups: Sequence[RolloutGroup],
    *,
    grading: Grading,
    tokens: Mapping[str, Sequence[str]],
    diagnosis: Sequence[str],
) -> Iterator[str]:
    """Format completions, their rewards and tags for a terminal, and the diagnosis at the end.

    Args:
        groups: [P][G] scored completions of each problem.
        tokens: tag of the format → its tokens, as the tokenizer splits it.
        diagnosis: sentences for the end, as `diagnose` returns them.
    """
    for group in groups:
        yield from _group_lines(group, grading)
    rows = [each for group in groups for each in group]
    yield f"All {len(rows)} completions of {len(groups)} problems"
    rewards = [{**grading.by_name(each), "in total": each.reward} for each in rows]
    for name in rewards[0]:
        values = [each[name] for each in rewards]
        variance = statistics.pvariance(values)
        yield f"  reward {name}: mean {statistics.fmean(values):.3g}, variance {variance:.3g}"
    yield f"  groups with differing rewards: {sum(map(has_signal, groups))} of {len(groups)}"
    num_distinct = sum(len(counts_of(group)) for group in groups)
    yield f"  distinct completions: {num_distinct / len(rows):.0%}"
    num_truncated = sum(each.truncated for each in rows)
    yield f"  cut off at the longest length: {num_truncated} of {len(rows)}"
    yield "Tags: their tokens, and the number of completions that write them"
    for tag, pieces in tokens.items():
        split = "one token" if len(pieces) == 1 else f"{len(pieces)} tokens: {' | '.join(pieces)}"
        yield f"  {tag}  {split}; {sum(tag in each.completion for each in rows)} of {len(rows)}"
    yield "Verdict"
    yield from (f"  - {sentence}" for sentence in diagnosis)


def _group_lines(group: RolloutGroup, grading: Grading) -> Iterator[str]:
    yield f"Problem: {group[0].problem}"
    yield f"Reference: {group[0].reference}"
    for number, each in enumerate(group, start=1):
        rewards = " ".join(f"{name}={value:g}" for name, value in grading.by_name(each).items())
        yield (
            f"  [{number}] reward={each.reward:g} ({rewards}) class={each.label} "
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
