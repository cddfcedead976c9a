"""The doctor names the reasons why params cannot run on a machine, and none where they can."""

import dataclasses
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lib.core.process import locked_versions
from lib.models.gpu import Gpu
from lib.params import Params, preset_names, preset_params
from lib.planning.doctor import (
    SAFE_VALUES,
    Machine,
    doctor_lines,
    findings,
    missing_tools,
    this_machine,
)
from lib.planning.memory import shape_of
from lib.planning.plan import phases_of
from lib.training.phase.launch import Launch
from tests.conftest import S1
from tests.lib.training.runs import changed

GIB = 1024**3

LAPTOP = Machine(
    python="3.11.9",
    differing=(),
    torch="2.13.0+cpu",
    cuda="",
    gpus=(),
    gpu_fault="",
    cores=4,
    free_memory=8 * GIB,
    total_memory=16 * GIB,
    free_disk=50 * GIB,
    packages=frozenset(),
    missing_tools=(),
)

SERVER = dataclasses.replace(
    LAPTOP,
    torch="2.13.0",
    cuda="13.0",
    gpus=(Gpu("NVIDIA H100", "580.1", 80 * GIB, 79 * GIB),),
    free_disk=500 * GIB,
    packages=frozenset({"vllm", "unsloth", "kernels"}),
)


def card(size: int) -> Machine:
    """Return a server with a GPU of `size` GiB, one of them in use."""
    return dataclasses.replace(SERVER, gpus=(Gpu("", "580.1", size * GIB, (size - 1) * GIB),))


ELSEWHERE = {key: {"engine": "vllm-server"} for key in ("rollout", "validation")}


def problems(params: Params, machine: Machine) -> list[str]:
    """List the findings' texts, except on commits, which `make fetch` looks up, and on results."""
    texts = (each.text for each in findings(params, machine) if each.weight != "result")
    return [text for text in texts if "make fetch" not in text]


def verdict(params: Params, machine: Machine) -> str:
    return list(doctor_lines(machine, findings(params, machine)))[-1]


@pytest.fixture(autouse=True)
def everything_is_fetched(monkeypatch):
    monkeypatch.setattr("lib.planning.inputs.is_here", lambda repository: True)
    monkeypatch.setattr("lib.planning.inputs._try_source", lambda *_, **__: iter(()))


@pytest.fixture
def tiny():
    return preset_params("tiny-cpu")


@pytest.mark.parametrize("preset", sorted({*preset_names()} - {"qwen2.5-math-7b"}))
def test_every_preset_can_run_on_one_large_gpu(preset):
    assert problems(preset_params(preset), SERVER) == []


@pytest.mark.parametrize(
    ("ranks", "shards", "changes", "words"),
    [
        (8, True, {}, ""),
        (8, False, {}, "grpo needs about"),
        (7, True, {}, "micro_batch_size=24 cannot be shared by 7"),
        (8, True, {"grpo": {"prompts_per_step": 36}}, "prompts_per_step=36: 8 processes"),
    ],
)
def test_ranks_share_out_a_model_and_a_step(ranks, shards, changes, words):
    machine = dataclasses.replace(SERVER, launch=Launch(ranks, shards), free_memory=2**40)
    reasons = problems(changed(preset_params("qwen2.5-math-7b"), changes), machine)
    assert any(words in each for each in reasons) if words else reasons == []


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ("", Launch()),
        ("python -m stages.ranks --nproc_per_node 4", Launch(4)),
        (
            "accelerate launch --config_file lib/presets/accelerate/fsdp2.yaml --num_processes 8",
            Launch(8, shards=True),
        ),
    ],
)
def test_a_launcher_says_how_many_ranks_and_what_they_hold(launch, expected, in_root, monkeypatch):
    monkeypatch.setenv("LAUNCH", launch)
    assert this_machine().launch == expected


def test_ranks_on_cpus_share_the_main_memory(tiny):
    needed = max(sum(each.memory.values()) for each in phases_of(tiny, shape_of(tiny.model)))
    laptop = dataclasses.replace(LAPTOP, free_memory=2 * needed)
    assert problems(tiny, laptop) == []
    reasons = problems(tiny, dataclasses.replace(laptop, launch=Launch(8)))
    assert any("of main memory" in reason for reason in reasons)


def test_what_only_spoils_the_result_is_a_warning():
    params = changed(preset_params(S1), {"model": {"dtype": "bfloat16"}})
    doubts = findings(params, SERVER)
    assert {each.weight for each in doubts} == {"result"}
    *_, warned, last = doctor_lines(SERVER, doubts)
    assert warned.startswith("warning: ") and "can run" in last


FLASH, KERNEL = "flash_attention_2", f"kernels-community/flash-attn2@{'0' * 40}"
OLD = dataclasses.replace(SERVER, gpus=(Gpu("Tesla T4", "580.1", 80 * GIB, 79 * GIB, 7.5),))
VLLM, UNSLOTH = {"engine": "vllm"}, {"model": {"backend": "unsloth"}}
FLASHING, WITH_KERNEL = ({"model": {"attention": each}} for each in (FLASH, KERNEL))
HALF = {"model": {"dtype": "bfloat16", "mixed_precision": "bf16"}}


def having(package: str) -> Machine:
    return dataclasses.replace(SERVER, packages=frozenset({package}))


@pytest.mark.parametrize(
    ("changes", "machine", "fault"),
    [
        (UNSLOTH, LAPTOP, "unsloth needs a GPU"),
        (FLASHING, LAPTOP, f"{FLASH} needs a GPU"),
        (UNSLOTH, having("vllm"), "unsloth needs unsloth, not installed"),
        (FLASHING, having("vllm"), f"{FLASH} needs flash_attn or kernels, not installed"),
        (FLASHING, having("kernels"), ""),
        (FLASHING, having("flash_attn"), ""),
        (WITH_KERNEL, having("flash_attn"), f"{KERNEL} needs kernels, not installed"),
        (WITH_KERNEL, having("kernels"), ""),
        # vLLM 0.32, platforms/cuda.py, `check_if_supports_dtype`.
        (HALF | {"rollout": VLLM}, OLD, "rollout.engine=vllm needs 8.0 for bfloat16, and Tesla T4"),
        (HALF | {"evaluate": VLLM}, OLD, "evaluate.engine=vllm needs 8.0 for bfloat16"),
        ({"rollout": VLLM}, OLD, ""),
        (HALF, OLD, ""),
        (FLASHING, OLD, f"{FLASH} needs 8.0 for flash attention, and Tesla T4"),
        (WITH_KERNEL, OLD, f"{KERNEL} needs 8.0 for flash attention"),
    ],
)
def test_a_part_that_the_machine_lacks_is_named(tiny, changes, machine, fault):
    params = changed(tiny, changes)
    lacks = [each for each in findings(params, machine) if " needs " in each.text]
    assert [each.weight for each in lacks] == ["certain"] * bool(fault)
    for each in lacks:
        key = each.text.partition("=")[0]
        assert fault in each.text and each.text.endswith(f"or set {key}: {SAFE_VALUES[key]}")
        assert verdict(params, machine) == "verdict: these params cannot run here"


VOLTA = Gpu("V100", "580.1", 16 * GIB, 15 * GIB, 7.0)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        # CUDA 13 has left it behind.
        ({"gpus": (VOLTA,), "cuda": "13.0"}, "V100 has compute capability 7.0"),
        ({"python": "3.13.1"}, "Python 3.13.1"),
        ({"differing": ("trl 1.0 (locked: 1.14.0)",)}, "1 packages differ"),
        ({"free_memory": GIB // 100}, "MiB of main memory"),
        ({"free_memory": 2**20}, "lower dpo.pairs.batch_size"),
        ({"free_disk": 1000}, "on disk"),
        ({"gpus": SERVER.gpus, "gpu_fault": "torch cannot use H100"}, "cannot use H100"),
        ({}, "rollout.device=cuda:1: there are 0 GPUs"),
    ],
)
def test_what_the_machine_lacks_is_named(tiny, changes, word):
    params = tiny.replaced(rollout={"device": "cuda:1"}, dpo={"init": ("sft",)})
    reasons = problems(params, dataclasses.replace(LAPTOP, **changes))
    assert any(word in reason for reason in reasons), reasons


def test_weights_beyond_all_memory_are_refused(tiny):
    sizes = tiny.model.tiny.model_dump() | {"vocab_size": 10**9}
    params = changed(tiny, {"model": {"tiny": sizes}})
    (reason,) = [each.text for each in findings(params, LAPTOP) if each.weight == "certain"]
    assert reason.startswith("model: ") and "take 477 GiB" in reason
    large = dataclasses.replace(LAPTOP, total_memory=500 * GIB)
    assert not any(each.weight == "certain" for each in findings(params, large))


@pytest.mark.parametrize(("wanted", "certain"), [(1600, 0), (1601, 1), (100_000, 1)])
def test_a_step_of_more_problems_than_there_are_is_refused(tiny, wanted, certain):
    params = changed(tiny, {"grpo": {"prompts_per_step": wanted, "micro_batch_size": 8}})
    # The share is only an expected one: all problems may be left.
    held_back = {"validation_share": 0.5, "validation_from": ("grpo",)}
    for each in (params, params.replaced(prepare=held_back)):
        reasons = [each.text for each in findings(each, LAPTOP) if each.weight == "certain"]
        assert [f"prompts_per_step={wanted}" in reason for reason in reasons] == [True] * certain


def test_what_triton_compiles_with_is_looked_for(monkeypatch):
    bare = dataclasses.replace(SERVER, missing_tools=("gcc", "Python.h"))
    (reason,) = problems(preset_params(S1), bare)
    assert "no gcc and no Python.h" in reason
    assert not any("gcc" in each for each in problems(preset_params("tiny-cpu"), bare))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/nowhere")
    assert list(missing_tools()) == ["gcc", "Python.h"]


@pytest.mark.parametrize(
    ("preset", "changes", "size", "words"),
    [
        ("s3-cs336", {}, 16, ["sft needs about 18.4 GiB", "lower sft."]),
        # 4.02 billion weights in float32, and the memory to generate with them.
        ("s0-qwen3-4b", {}, 18, ["export needs about 17.8 GiB", "on the CPU"]),
        # It trains in 10.4 GiB, and the sleeping vLLM beside it keeps 1 GiB.
        (S1, {}, 12, ["grpo needs about 11.9 GiB"]),
        (S1, ELSEWHERE, 12, []),
        # 7.7 GiB of weights are in vLLM's 0.7 of 25 GiB.
        ("s0-qwen3-4b", {}, 25, []),
        ("s0-qwen3-4b", {"model": {"backend": "transformers"}}, 25, ["grpo needs about "]),
    ],
)
def test_a_phase_too_large_for_the_gpu_is_refused(preset, changes, size, words):
    reasons = problems(changed(preset_params(preset), changes), card(size))
    needs = "\n".join(reason for reason in reasons if "GiB of GPU memory" in reason)
    assert bool(needs) == bool(words)
    assert all(word in needs for word in words)


def test_a_server_that_does_not_answer_is_named(tiny, monkeypatch):
    params = changed(tiny, {"evaluate": {"engine": "vllm-server"}})

    class Health(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("RECKON_VLLM_URL", url)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert problems(params, SERVER) == []
        server.shutdown()
    (silent,) = [each for each in findings(params, SERVER) if "no vLLM server" in each.text]
    assert silent.text.startswith("evaluate.engine=vllm-server: ") and url in silent.text
    # `check` warns and continues: the server needs the files of `prepare`.
    assert silent.weight == "likely"
    assert "cannot run" in verdict(params, SERVER)
    monkeypatch.setenv("RECKON_VLLM_URL", "http://127.0.0.1:80a")
    assert any("127.0.0.1:80a (InvalidURL)" in each for each in problems(params, SERVER))


def test_lines_of_a_lock_for_other_pythons_do_not_count(tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "# made by a tool\nscipy==1.0 ; python_full_version < '3.0'\n"
        "scipy==2.0 ; python_full_version >= '3.0'\nclick==8.5.1\n"
    )
    assert locked_versions(lock) == {"scipy": "2.0", "click": "8.5.1"}
