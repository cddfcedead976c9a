"""Sample completions of problems and judge them, for validation, DPO pairs, pass rates and
diagnosis.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from lib.artifacts.problems import Problem
from lib.engines.base import Engine, Sampling, encode, open_engine, room_for_completions
from lib.params.schema import Params
from lib.prompts import prompt_format, saved_system
from lib.prompts.formats import conversation
from lib.rewards.grading import Grading
from lib.rewards.rollout import Rollout


def sample_groups(
    engine: Engine,
    problems: Sequence[Problem],
    *,
    grading: Grading,
    system: str,
    sampling: Sampling,
    max_seq_length: int | None = None,
) -> list[list[Rollout]]:
    """Sample G completions of each of P problems, judge and score them; return rollouts [P][G].

    Args:
        system: system prompt, '' for none.
        max_seq_length: shorten completions to what the longest prompt leaves of it, as GRPO does;
            None for `sampling`'s length.

    Raises:
        UserError: the longest prompt leaves no token.
    """
    prompts = [conversation(each.problem, system=system) for each in problems]
    token_ids = encode(engine.tokenizer, prompts)
    if max_seq_length:
        room = room_for_completions(token_ids, max_seq_length=max_seq_length)
        sampling = dataclasses.replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))
    # [P][G]
    generated = engine.generate(token_ids, sampling)
    groups = [
        grading.judge(
            completions,
            problem=problem.problem,
            reference=problem.reference,
            tags=problem.tags,
            prompt=prompt,
            prompt_ids=ids,
        )
        for problem, prompt, ids, completions in zip(
            problems, prompts, token_ids, generated, strict=True
        )
    ]
    # Group by group: a reward may compare the completions of a problem with each other.
    for group in groups:
        grading.score(group)
    return groups


def sample_checkpoint(
    params: Params,
    checkpoint: Path,
    problems: Sequence[Problem],
    *,
    base: Path,
    grading: Grading | None = None,
    num_completions: int,
    engine: str,
    batch_size: int,
) -> list[list[Rollout]]:
    """Sample a checkpoint of this pipeline with GRPO's decoding settings; judge the completions.

    Args:
        base: the weights that an adapter was trained on, with the system prompt beside them.
        grading: prompt format and rewards; None judges without any reward.
        num_completions: G.
        batch_size: completions generated at a time.

    Returns:
        [P][G].
    """
    grading = grading or Grading(prompt_format=prompt_format(**params.prompt.rendering))
    sampling = Sampling(
        **params.rollout.decoding,
        num_completions=num_completions,
        stop_strings=grading.prompt_format.stop_strings,
        tool=grading.prompt_format.tool,
        seed=params.seed,
    )
    opened = open_engine(
        engine,
        checkpoint,
        base=base,
        **params.model.loading,
        batch_size=batch_size,
        label=f"sample {checkpoint.name}",
    )
    # A vLLM engine holds its share of the GPU until it is closed.
    with contextlib.closing(opened):
        return sample_groups(
            opened,
            problems,
            grading=grading,
            # As training reads it.
            system=saved_system(base),
            sampling=sampling,
            max_seq_length=params.model.max_seq_length,
        )
