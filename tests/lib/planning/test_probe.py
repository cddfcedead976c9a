"""The probe finds the largest micro-batch within a memory limit, or reports none."""

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from ruamel.yaml import YAML
from transformers import Trainer

from commands import memory_probe
from lib.artifacts import write_json
from lib.artifacts.problems import Problem, write_problems
from lib.params import compose_preset
from lib.planning import probe as probing
from lib.planning.probe import fits, longest_first
from lib.problems.selection import token_counter
from lib.prompts import prompt_format, save_system
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from tests.lib.training.runs import changed

PLENTY = 64 * 1024**3


@pytest.fixture(scope="module")
def own_base(base, tmp_path_factory):
    """Copy the base with a system prompt beside it, as `prepare` leaves it."""
    folder = tmp_path_factory.mktemp("own") / "base"
    shutil.copytree(base, folder)
    save_system(folder, "")
    return folder


@pytest.fixture
def passes(monkeypatch):
    """Record the shape of each batch in GRPO's loss: (rows, prompt + completion tokens)."""
    seen = []
    inner = PolicyGradientTrainer.compute_loss

    def watched(self, model, inputs, **kwargs):
        rows, prompt = inputs["batch"].prompt_ids.shape
        seen.append((rows, prompt + inputs["batch"].completion_ids.shape[1]))
        return inner(self, model, inputs, **kwargs)

    monkeypatch.setattr(PolicyGradientTrainer, "compute_loss", watched)
    yield seen


def full(rank: int) -> list[Problem]:
    working = "one and two are three. " * rank
    return [Problem.create(problem="What is 1 + 2?", reference="3", solution=working)]


@pytest.fixture
def room(monkeypatch):
    """Raise CUDA's out-of-memory error in step 2 of a micro-batch above `rows`."""
    largest = {"rows": 1_000_000}
    inner = Trainer.training_step

    def short_of_memory(self, *args, **kwargs):
        loss = inner(self, *args, **kwargs)
        if self.state.global_step == 1 and self.args.train_batch_size > largest["rows"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return loss

    monkeypatch.setattr(Trainer, "training_step", short_of_memory)
    yield largest


def test_a_micro_batch_fits_or_does_not(smoke, own_base, room):
    long = {"base": own_base, "problems": full(1), "tokens": 50, "limit": PLENTY}
    assert fits(smoke, "sft", **long, size=16)
    room["rows"] = 5
    assert not fits(smoke, "sft", **long, size=8)
    assert fits(smoke, "sft", **long, size=4)


@pytest.mark.slow
def test_grpo_takes_two_steps_of_the_longest_rows(smoke, own_base, sets, tmp_path, passes):
    """The KL reference counts, and so does every micro-batch of a step."""
    params = changed(smoke, {"grpo": {"beta": 0.04, "micro_batch_size": 4}})
    write_problems(tmp_path / "grpo.jsonl", sets.grpo)
    problems, tokens = longest_first(params, "grpo", base=own_base, problems=tmp_path)
    long = {"base": own_base, "problems": problems, "tokens": tokens, "limit": PLENTY}
    assert fits(params, "grpo", **long, size=16)
    assert passes == [(16, tokens), (16, tokens)]
    passes.clear()
    assert fits(params, "grpo", **long, size=4)
    # Two steps of 16 rows.
    assert [rows for rows, _ in passes] == [4] * 8


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the limit is for CPUs")
def test_torchs_allocator_meets_the_limit_while_it_is_set():
    with probing._memory_limit(2**28):
        torch.zeros(2**20)
        with pytest.raises(RuntimeError) as error:
            torch.zeros(2**30)
    assert probing._short_of_memory(error.value)
    assert torch.empty(2**30).numel() == 2**30


def test_another_error_than_memorys_is_not_taken_for_it(smoke, own_base, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("a bug")

    monkeypatch.setattr(probing, "sft_setup", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        long = {"base": own_base, "problems": full(1), "tokens": 20, "limit": PLENTY}
        fits(smoke, "sft", **long, size=4)


def test_the_longest_row_counts_all_that_may_be_generated(smoke, own_base, sets, tmp_path):
    used_format = prompt_format(smoke.prompt.format)
    counter = token_counter(own_base, prompt_format=used_format, system="")
    for phase, rows in (("sft", sets.sft), ("grpo", sets.grpo)):
        write_problems(tmp_path / f"{phase}.jsonl", rows)
        lengths = {
            row: counter.prompts([row])[0]
            + (counter.completions([row])[0] if phase == "sft" else smoke.rollout.max_new_tokens)
            for row in rows
        }
        problems, tokens = longest_first(smoke, phase, base=own_base, problems=tmp_path)
        assert [lengths[row] for row in problems] == sorted(lengths.values(), reverse=True)
        assert tokens == max(lengths.values())
        cut = smoke.replaced(model={"max_seq_length": tokens - 1})
        assert longest_first(cut, phase, base=own_base, problems=tmp_path)[1] == tokens - 1


@pytest.fixture
def probe(own_base, tmp_path):
    """Run the command on the smoke preset with other values; return its lines."""

    def probed(**sections):
        content = YAML(typ="safe").load(compose_preset("smoke"))
        for name, values in sections.items():
            content[name] |= values
        write_json(tmp_path / "params.yaml", content)
        for phase in ("sft", "grpo"):
            write_problems(tmp_path / f"{phase}.jsonl", full(5))
        places = {"params": tmp_path / "params.yaml", "problems": tmp_path, "base": own_base}
        options = [f"--{name}={place}" for name, place in places.items()]
        return (
            CliRunner().invoke(memory_probe.main, [*options, "--limit-gib=64"]).output.splitlines()
        )

    return probed


COMMAND = [sys.executable, "-m", "commands.memory_probe"]


def test_the_command_prints_what_to_set_or_why_not(probe, monkeypatch):
    def here(command, **_):
        assert command[:3] == COMMAND
        done = CliRunner().invoke(memory_probe.probe_size, command[3:])
        return subprocess.CompletedProcess(command, done.exit_code)

    monkeypatch.setattr(memory_probe, "subprocess", SimpleNamespace(run=here))
    largest, skipped = probe(model={"max_seq_length": 100_000}, grpo={"max_steps": 0})
    assert largest.startswith("memory-probe sft longest=")
    assert largest.endswith("set sft.micro_batch_size: 16")
    assert skipped == "memory-probe grpo skipped: grpo.max_steps is 0"


@pytest.mark.parametrize(("largest", "words"), [(4, "sft.micro_batch_size: 4"), (0, ": 1 row(s)")])
def test_each_size_is_tried_in_a_process_of_its_own(largest, words, probe, monkeypatch):
    """A step has 16 rows; a process killed by the kernel (-9) counts as out of memory."""
    sizes = []

    def tried(command, **_):
        phase, size = command[-2:]
        sizes.append(int(size))
        failures = (probing.OUT_OF_MEMORY, -9)
        code = 0 if phase == "grpo" or int(size) <= largest else failures[len(sizes) % 2]
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(memory_probe, "subprocess", SimpleNamespace(run=tried))
    assert words in "\n".join(probe())
    assert sizes[:3] == [16, 8, 4]
