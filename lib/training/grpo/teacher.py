"""The teacher of on-policy distillation: a frozen model that scores the student's own tokens."""

from pathlib import Path
from typing import Any

from lib.core.errors import UserError
from lib.inference.external import find_model
from lib.models.load import load_merged
from lib.models.pretrained import load_tokenizer
from lib.params.model import Model


def load_teacher(name: str, tokenizer: Any, *, base: Path, settings: Model) -> Any:
    """Load the teacher `name`: a folder, a checkpoint of the pipeline, a GGUF file, or a Hub id.

    Args:
        tokenizer: the student's.
        base: the weights below an adapter.

    Raises:
        UserError: no such model, or its tokenizer has other ids.
    """
    folder = find_model(name)
    ours, theirs = tokenizer.get_vocab(), load_tokenizer(folder).get_vocab()
    differing = sorted(
        token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)
    )
    if differing:
        raise UserError(
            f"grpo.teacher: {folder} has another id than the student, or none, for "
            f"{len(differing)} tokens, such as {', '.join(map(repr, differing[:3]))}; name a "
            "teacher with the student's tokenizer"
        )
    teacher = load_merged(folder, base=base, dtype=settings.dtype, attention=settings.attention)
    return teacher.eval().requires_grad_(False)
