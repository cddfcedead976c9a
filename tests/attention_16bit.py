"""An attention for a CPU that refuses float32, as flash-attention's kernels do."""

from typing import Any

import pytest
import torch
from transformers.integrations.flash_attention import get_target_dtype
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lib.engines import policy

NAME = "only_16_bit"


def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **settings: Any) -> Any:
    """SDPA; before it, what transformers does before it calls a flash kernel."""
    target = get_target_dtype(query, module)
    if target and query.dtype == torch.float32:
        query, key, value = (states.to(target) for states in (query, key, value))
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(f"FlashAttention only support fp16 and bf16 data type, {query.dtype}")
    return sdpa_attention_forward(module, query, key, value, mask, **settings)


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Let every flash attention that params name be this one."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    patch.setattr(policy, "with_kernel", lambda name: NAME if "flash" in name else name)
