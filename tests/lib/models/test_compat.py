"""Repairs of libraries by themselves, without vLLM."""

import random

import numpy as np
import torch
from transformers import TrainingArguments

from lib.models import compat
from lib.models.compat import undisturbed


def test_building_an_engine_keeps_random_states_and_threads(monkeypatch):
    gpus = {0: "first", 1: "second"}  # the states of their generators
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_rng_state", gpus.get)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, gpu: gpus.update({gpu: state}))
    setter, threads = torch.set_num_threads, torch.get_num_threads()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with undisturbed():
        torch.set_num_threads(threads + 1)
        torch.set_num_threads = lambda number: None
        torch.manual_seed(1)
        gpus.update({0: "seeded", 1: "seeded"})
        random.seed(1)
        np.random.seed(1)
    assert torch.set_num_threads is setter
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), states[0])
    assert gpus == {0: "first", 1: "second"}
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]


def test_a_trainer_takes_one_gpu_however_many_it_sees(tmp_path):
    compat.one_gpu_per_process()
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert arguments.n_gpu == 0
    arguments._n_gpu = 2
    assert arguments.n_gpu == 1
    assert arguments.train_batch_size == arguments.per_device_train_batch_size
