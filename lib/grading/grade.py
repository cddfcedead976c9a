"""A completion becomes a graded one: what it answers, whether that is right, what it earns."""

from collections.abc import Iterator, Sequence

from lib.artifacts.completions import GeneratedCompletion, GradedCompletion
from lib.artifacts.problems import Problem
from lib.prompts import Message
from lib.rewards.functions import Grading, scores


def grade_completions(
    problem: Problem,
    prompt: Sequence[Message],
    completions: Sequence[GeneratedCompletion],
    *,
    grading: Grading,
) -> Iterator[GradedCompletion]:
    """Each completion of `problem` with its grade, in their order."""
    rollouts = [
        grading.rollout(
            completion.text,
            reference=problem.reference,
            problem=problem.problem,
            tags=problem.tags,
            prompt=prompt,
            token_ids=completion.token_ids,
        )
        for completion in completions
    ]
    names = [reward.__name__ for reward in grading.rewards]
    earned = dict(zip(names, scores(grading.rewards, rollouts), strict=True))
    for number, (completion, rollout) in enumerate(zip(completions, rollouts, strict=True)):
        rewards = {name: values[number] or 0.0 for name, values in earned.items()}
        reasoning = rollout.parsed.reasoning or ""
        yield GradedCompletion(
            sample=number,
            problem_id=problem.id,
            problem=problem.problem,
            reference=problem.reference,
            subject=problem.subject,
            level=problem.level,
            tags=problem.tags,
            completion=completion.text,
            answer=rollout.answer,
            format_ok=rollout.format_ok,
            answer_ok=rollout.answer_ok,
            strict_ok=rollout.strict_ok,
            label=rollout.label,
            decided_by=rollout.verdict.decided_by,
            reasoning_present=bool(reasoning),
            reasoning_chars=len(reasoning),
            equations=reasoning.count("="),
            num_tokens=rollout.num_tokens,
            truncated=completion.truncated,
            rewards=rewards,
            reward=sum(
                weight * value
                for weight, value in zip(grading.weights, rewards.values(), strict=True)
            ),
        )
