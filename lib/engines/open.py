"""The engine that params name, around one of the pipeline's checkpoints."""

from pathlib import Path

from transformers import PreTrainedModel

from lib.engines.base import Engine
from lib.engines.policy import load_merged, load_tokenizer
from lib.engines.transformers import TransformersEngine
from lib.params.schema import EngineName, Model


def open_engine(
    name: EngineName,
    checkpoint: Path,
    *,
    base: Path,
    model: Model,
    batch_size: int,
    label: str = "",
    policy: PreTrainedModel | None = None,
) -> Engine:
    """Something that generates from `checkpoint`; the caller closes it.

    Args:
        name: `evaluate.engine` or `rollout.engine`.
        checkpoint: what `prepare`, `sft` or `grpo` wrote.
        base: the weights that an adapter was trained on.
        batch_size: completions generated at a time.
        label: name of the progress bar; '' shows none.
        policy: the checkpoint where it is in memory already, as in training.
    """
    if policy is None:
        policy = load_merged(checkpoint, base=base, dtype=model.dtype, attention=model.attention)
    return TransformersEngine(
        policy, load_tokenizer(checkpoint), batch_size=batch_size, label=label
    )
