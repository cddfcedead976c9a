"""What the repairs do by themselves, without vLLM."""

import warnings

import torch

from lib.engines.compat import _tempered, silence_supported_range

RANGE = "TRL currently supports vLLM versions from 0.20.0 to 0.30.0. You have version {} installed."


def test_trls_warning_about_this_vllm_is_silent_and_about_another_is_not() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        silence_supported_range()
        for version in ("0.32.0", "0.33.0"):
            warnings.warn(RANGE.format(version), stacklevel=1)
    assert [str(warning.message) for warning in caught] == [RANGE.format("0.33.0")]


def test_log_probs_are_after_the_temperature_and_greedy_rows_without_one() -> None:
    logits = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    tempered = _tempered(logits, temperature=torch.tensor([0.5, 0.0]))
    assert torch.allclose(tempered[0], (logits[0] / 0.5).log_softmax(-1))
    assert torch.allclose(tempered[1], logits[1].log_softmax(-1))
    assert torch.allclose(_tempered(logits, temperature=None), logits.log_softmax(-1))
