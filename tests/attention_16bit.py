"""Attention on a CPU that refuses float32, like flash-attention's kernels."""

from typing import Any

import pytest
import torch
from transformers.integrations.flash_attention import get_target_dtype
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lib.models import load

NAME = "only_16_bit"


def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **settings: Any) -> Any:
    """Cast as transformers does before a flash kernel, refuse float32, then run SDPA."""
    target = get_target_dtype(query, module)
    if target and query.dtype == torch.float32:
        query, key, value = (states.to(target) for states in (query, key, value))
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(f"FlashAttention only support fp16 and bf16 data type, {query.dtype}")
    return sdpa_attention_forward(module, query, key, value, mask, **settings)


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Replace every flash attention of params with `attend`."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    patch.setattr(load, "with_kernel", lambda name: NAME if "flash" in name else name)
