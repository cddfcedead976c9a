"""What the repairs do by themselves, without vLLM."""

import random
import warnings

import numpy as np
import torch

from lib.engines.compat import silence_supported_range, undisturbed

RANGE = "TRL currently supports vLLM versions from 0.20.0 to 0.30.0. You have version {} installed."


def test_trls_warning_about_this_vllm_is_silent_and_about_another_is_not() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        silence_supported_range()
        for version in ("0.32.0", "0.33.0"):
            warnings.warn(RANGE.format(version), stacklevel=1)
    assert [str(warning.message) for warning in caught] == [RANGE.format("0.33.0")]


def test_building_an_engine_takes_neither_random_states_nor_the_setting_of_threads() -> None:
    setter, threads = torch.set_num_threads, torch.get_num_threads()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with undisturbed():
        torch.set_num_threads(threads + 1)
        torch.set_num_threads = lambda number: None
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
    assert torch.set_num_threads is setter
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]
