"""The doctor says why params cannot run on a machine, and finds nothing where they can."""

import dataclasses
from collections.abc import Collection
from pathlib import Path

import pytest

from lib.params import Params, preset_names, preset_params
from lib.planning.doctor import doctor_lines, findings
from lib.planning.machine import Gpu, Machine, find_gpus, locked_versions, this_machine
from tests.conftest import ROOT

GIB = 1024**3

LAPTOP = Machine(
    python="3.11.9",
    differing=(),
    num_locked=100,
    torch="2.13.0+cpu",
    cuda="",
    gpus=(),
    cores=4,
    memory=8 * GIB,
    disk=50 * GIB,
    packages=frozenset(),
)

SERVER = dataclasses.replace(
    LAPTOP,
    torch="2.13.0",
    cuda="13.0",
    gpus=(Gpu("NVIDIA H100", "570.1", 80 * GIB, 79 * GIB),),
    disk=500 * GIB,
    packages=frozenset({"vllm", "unsloth", "kernels"}),
)


def hindrances(params: Params, machine: Machine) -> list[str]:
    """What speaks against it, but for commits that `make fetch` has yet to look up."""
    texts = [each.text for each in findings(params, machine) if each.weight != "result"]
    return [text for text in texts if "run `make fetch`" not in text]


def examined(params: Params, machine: Machine) -> list[str]:
    return list(doctor_lines(machine, findings(params, machine)))


def with_model(params: Params, **changes: object) -> Params:
    return params.model_copy(update={"model": params.model.model_copy(update=changes)})


@pytest.fixture
def tiny() -> Params:
    return preset_params("tiny-cpu")


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_can_run_on_a_server_with_large_gpus(preset: str) -> None:
    two = dataclasses.replace(SERVER, gpus=SERVER.gpus * 2)
    texts = [finding.text for finding in findings(preset_params(preset), two)]
    assert [text for text in texts if "run `make fetch`" not in text] == []


def test_sampling_that_does_not_fit_names_its_knob(tiny: Params) -> None:
    dpo = tiny.dpo.model_copy(update={"init": ("sft",)})
    small = dataclasses.replace(LAPTOP, memory=2**20)
    against = hindrances(tiny.model_copy(update={"dpo": dpo}), small)
    knobs = {line.split()[0]: line for line in against}
    assert "lower dpo.pairs.batch_size" in knobs["pairs"]


def test_a_second_gpu_that_is_not_there_is_named() -> None:
    (reason,) = hindrances(preset_params("s2-math-sft"), SERVER)
    assert reason == "rollout.device=cuda:1: there are 1 GPUs"


def test_what_only_spoils_the_result_is_a_warning() -> None:
    params = with_model(preset_params("s1-qwen2.5-0.5b"), dtype="bfloat16")
    (finding,) = findings(params, SERVER)
    assert finding.weight == "result"
    assert finding.text.startswith("grpo.learning_rate: 5e-06 on bfloat16 weights leaves 92%")
    *_, warned, verdict = examined(params, SERVER)
    assert warned == f"warning: {finding.text}"
    assert verdict == "verdict: these params can run here"


def test_the_default_runs_on_a_laptop(tiny: Params) -> None:
    assert hindrances(tiny, LAPTOP) == []
    assert examined(tiny, LAPTOP)[-1] == "verdict: these params can run here"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"backend": "unsloth"},
            "model.backend=unsloth needs a GPU; or set model.backend: transformers",
        ),
        (
            {"attention": "flash_attention_2"},
            "model.attention=flash_attention_2 needs a GPU; or set model.attention: sdpa",
        ),
    ],
)
def test_what_needs_a_gpu_is_named(tiny: Params, changes: dict[str, object], reason: str) -> None:
    params = with_model(tiny, **changes)
    assert hindrances(params, LAPTOP) == [reason]
    lines = examined(params, LAPTOP)
    assert f"against: {reason}" in lines
    assert lines[-1] == "verdict: these params cannot run here"


def test_a_package_that_params_need_is_named(tiny: Params) -> None:
    bare = dataclasses.replace(SERVER, packages=frozenset())
    params = with_model(tiny, backend="unsloth")
    (reason,) = hindrances(params, bare)
    assert reason.startswith("model.backend=unsloth needs unsloth, not installed (`make setup EX")


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ({"flash_attn", "kernels"}, "yes (flash_attn kernels)"),
        ({"kernels"}, "yes (kernels)"),
        ((), "needs flash_attn or kernels, not installed (`make setup EXTRA=gpu`)"),
    ],
)
def test_flash_attention_is_compiled_or_from_the_hub_or_comes_with_its_remedy(
    tiny: Params, packages: Collection[str], said: str
) -> None:
    machine = dataclasses.replace(SERVER, packages=frozenset(packages))
    params = with_model(tiny, attention="flash_attention_2")
    assert f"flash_attention_2: {said}" in examined(params, machine)
    remedy = f"model.attention=flash_attention_2 {said}; or set model.attention: sdpa"
    assert hindrances(params, machine) == ([] if packages else [remedy])


def test_a_kernel_at_a_commit_is_loaded_by_its_own_package(tiny: Params) -> None:
    params = with_model(tiny, attention=f"kernels-community/flash-attn2@{'0' * 40}")
    compiled = dataclasses.replace(SERVER, packages=frozenset({"flash_attn"}))
    (reason,) = hindrances(params, compiled)
    assert " needs kernels, not installed" in reason
    assert hindrances(params, SERVER) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"python": "3.13.1"}, "Python 3.13.1; reckon needs 3.11 or 3.12"),
        ({"differing": ("trl 1.0 (locked: 1.14.0)",)}, "1 packages differ from the lock"),
        ({"memory": GIB // 100}, "sft needs about 62.8 MiB of main memory"),
        ({"disk": 1000}, "the models need about"),
        ({"gpus": SERVER.gpus}, "torch 2.13.0+cpu cannot use the GPU"),
    ],
)
def test_a_machine_that_lacks_something_is_told_what(
    tiny: Params, changes: dict[str, object], said: str
) -> None:
    reasons = hindrances(tiny, dataclasses.replace(LAPTOP, **changes))
    assert any(reason.startswith(said) for reason in reasons), reasons


def test_a_model_that_is_too_large_for_the_gpu_is_refused() -> None:
    small = dataclasses.replace(SERVER, gpus=(Gpu("T4", "550.1", 16 * GIB, 15 * GIB),))
    (first, *_) = hindrances(preset_params("s3-cs336"), small)
    assert first.startswith("sft needs about 17.4 GiB of GPU memory, 15 GiB are free; lower sft.")


def test_a_colocated_vllm_counts_with_the_policy() -> None:
    """S1's GRPO trains in 11.5 GiB; of 16 GiB vLLM takes 0.3."""
    small = dataclasses.replace(SERVER, gpus=(Gpu("T4", "550.1", 16 * GIB, 15 * GIB),))
    params = preset_params("s1-qwen2.5-0.5b")
    (reason,) = hindrances(params, small)
    assert reason.startswith("grpo needs about 16.8 GiB of GPU memory, 15 GiB are free")
    elsewhere = params.rollout.model_copy(update={"engine": "vllm-server"})
    validation = params.validation.model_copy(update={"batch_size": 16})
    changed = {"rollout": elsewhere, "validation": validation}
    assert hindrances(params.model_copy(update=changed), small) == []


def test_weights_that_vllm_shares_with_the_policy_count_once() -> None:
    """S0: 7.7 GiB of weights are in vLLM's 0.7 of 24 GiB."""
    middling = dataclasses.replace(SERVER, gpus=(Gpu("RTX 4090", "570.1", 24 * GIB, 23 * GIB),))
    params = preset_params("s0-qwen3-4b")
    assert hindrances(params, middling) == []
    (reason,) = hindrances(with_model(params, backend="transformers"), middling)
    assert reason.startswith("grpo needs about ")


def test_the_first_line_says_what_torch_was_built_for(tiny: Params) -> None:
    assert examined(tiny, SERVER)[0] == "python 3.11.9; torch 2.13.0, for CUDA 13.0"
    assert examined(tiny, LAPTOP)[0].endswith("torch 2.13.0+cpu, without CUDA")


def test_the_drivers_tool_is_read(tmp_path: Path) -> None:
    tool = tmp_path / "smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB, 570.1, 81559, 81000'\n")
    tool.chmod(0o755)
    (gpu,) = find_gpus(str(tool))
    assert (gpu.name, gpu.driver, gpu.free) == ("NVIDIA H100 80GB", "570.1", 81000 * 1024**2)
    assert find_gpus(str(tmp_path / "none")) == ()
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert find_gpus(str(tool)) == ()


def test_lines_of_a_lock_for_other_pythons_do_not_count(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "# made by a tool\nscipy==1.0 ; python_full_version < '3.0'\n"
        "scipy==2.0 ; python_full_version >= '3.0'\nclick==8.5.1\n"
    )
    assert locked_versions(lock) == {"scipy": "2.0", "click": "8.5.1"}


def test_this_machine_is_the_one_that_the_lock_describes() -> None:
    machine = this_machine(lock=ROOT / "requirements/cpu.txt")
    assert machine.num_locked > 100
    assert machine.torch
    assert not machine.differing
