"""Two processes train as one does: same gradients, equal weights on both."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from lib.artifacts import write_json
from lib.artifacts.problems import write_problems
from lib.params import preset_params
from lib.problems.generated import GeneratedSets
from lib.training.phase.ranks import check_ranks_agree
from tests.lib.training import ranks
from tests.lib.training.grpo_stage import grpo_stage, learned
from tests.lib.training.runs import CHANGES, launch, on_ranks
from tests.lib.training.steps import NO_CLIPPING
from tests.vllm_server import free_port

pytestmark = pytest.mark.slow

LORA = pytest.mark.parametrize("rank", [0, 8], ids=["full", "LoRA"])
TWO = ["torchrun", "--nproc_per_node", "2"]
OURS = ["python", "-m", "stages.ranks", "--standalone", "--nproc_per_node", "2"]


def trained(folder: Path, processes: int, *way: str) -> list[dict[str, Any]]:
    """Train, and return every rank's result."""
    ran = on_ranks(processes, ranks.main, folder, *way, log=folder / "log")
    assert ran.returncode == 0, ran.stdout
    files = [folder / f"{processes}-{rank}.pt" for rank in range(processes)]
    return [torch.load(file, weights_only=False) for file in files]


def write_run(folder: Path, base: Path, sets: GeneratedSets, rank: int, **sections: dict[str, Any]):
    """Write the inputs of a GRPO run of two steps, with a LoRA rank or 0 for all weights."""
    shutil.copytree(base, folder / "base")
    write_problems(folder / "grpo.jsonl", sets.grpo)
    grpo = {"max_steps": 2, "max_grad_norm": NO_CLIPPING}
    write_json(folder / CHANGES, {"model": lora(rank), "grpo": grpo, **sections})


OBJECTIVES: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "signal": {"divide_by": "signal"},
    "signal, dr_grpo": {"divide_by": "signal", "loss": "dr_grpo"},
    "prompt": {"average": "prompt"},
    "prompt, signal, cispo": {"average": "prompt", "divide_by": "signal", "loss": "cispo"},
    "dppo": {"loss": "dppo", "epsilon": 0.01, "num_iterations": 2},
    "retire": {"curriculum": "retire"},
    "pool": {"curriculum": "pool"},
    "teacher": {"teacher_coef": 1.0},
    "teacher, full": {"teacher_coef": 1.0, "teacher_kl": "full", "teacher_top_k": 50},
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_ranks_and_accumulation_change_no_step(name, base, sets, tmp_path):
    """Two ranks in micro-batches of 4 against one process with one of 16, in four steps."""
    results, rank = {}, 8 if name == "LoRA" else 0
    for processes, size in ((1, 16), (2, 4)):
        folder = tmp_path / str(processes)
        folder.mkdir()
        grpo = {"max_steps": 4, "max_grad_norm": NO_CLIPPING, "learning_rate": 1e-4}
        grpo |= {"save_steps": 0, "keep_checkpoints": 0, "curriculum_high": 0.5}
        grpo |= {"teacher": str(base)} if "teacher" in name else {}
        write_run(
            folder, base, sets, rank, grpo=grpo | {"micro_batch_size": size, **OBJECTIVES[name]}
        )
        write_problems(folder / "grpo.jsonl", sets.grpo[:8])
        results[processes] = trained(folder, processes)
    (alone,), both = results[1], results[2]
    for step, gradients in enumerate(alone["all_gradients"]):
        assert max(gradient.abs().max() for gradient in gradients.values()) > 1e-4
        for each in both:
            agree(each["all_gradients"][step], gradients, within=1e-5)
        # The same problems in the same order, since completions are scripted by the prompt.
        own = [one for each in both for one in each["all_completions"][step]]
        assert own == alone["all_completions"][step]
    agree(both[0]["weights"], both[1]["weights"], within=0)


ENGINES = [
    "transformers",
    pytest.param("vllm", marks=pytest.mark.vllm),
    pytest.param("vllm-server", marks=pytest.mark.vllm),
]


@LORA
@pytest.mark.parametrize("engine", ENGINES)
def test_two_ranks_with_shards_sample_and_learn_as_one_process(
    engine, rank, base, sets, tmp_path, request
):
    if engine == "vllm-server":
        request.getfixturevalue("server")
    write_run(tmp_path, base, sets, rank, rollout={"engine": engine})
    (alone,) = trained(tmp_path, 1, "whole")
    both = trained(tmp_path, 2, "shards")
    assert len({*alone["completions"]}) > 4
    assert [one for each in both for one in each["completions"]] == alone["completions"]
    for each in both:
        assert_gradients_as_alone(each, alone)
        assert max(each["gaps"]) < max(2 * max(alone["gaps"]), 1e-6)
    agree(both[0]["weights"], both[1]["weights"], within=0)


def lora(rank: int) -> dict[str, Any]:
    whole = preset_params("smoke").model.lora.model_dump(mode="json")
    return {"lora": {**whole, "rank": rank}}


def agree(one: dict[str, Any], other: dict[str, Any], *, within: float):
    torch.testing.assert_close(one, other, rtol=0, atol=within)


def assert_gradients_as_alone(one: dict[str, Any], alone: dict[str, Any]):
    assert max(gradient.abs().max().item() for gradient in alone["gradients"].values()) > 1e-3
    agree(one["gradients"], alone["gradients"], within=1e-5)


def one_line(ran: Any, text: str) -> bool:
    """Whether the launcher reports the error as one line with `text`."""
    errors = [line for line in ran.stderr.splitlines() if "Error" in line]
    noise = [word for word in ("Traceback", "Warning", "======") if word in ran.stderr]
    return len(errors) == 1 and text in errors[0] and not noise


def test_ended_ranks_resume_to_an_undisturbed_runs_weights(base, sets, tmp_path):
    weights = {}
    for name, step in {"undisturbed": None, "killed": 2, "terminated": 1}.items():
        (tmp_path / name).mkdir()
        stage = grpo_stage(tmp_path / name, base=base, sets=sets)
        if step:
            dies = ["-m", "tests.lib.training.dies", *["TERM"] * (step == 1), *stage[2:]]
            ended = launch(*(OURS if step == 2 else TWO), *dies)
            if step == 2:
                assert ended.returncode == 9 and one_line(ended, "was ended by SIGKILL")
            else:
                assert "the same command resumes from step 1" in ended.stderr
            # Rank 1 sees no checkpoint, and reports rank 0's.
            assert "the same command starts again" not in ended.stderr
        ran = launch(*TWO, *stage)
        assert ran.returncode == 0, ran.stderr
        assert ("resumes from step" in ran.stdout + ran.stderr) == bool(step)
        assert not step or f"resumes from step {step}" in ran.stdout + ran.stderr
        assert learned(tmp_path / name)
        # Printed by one rank, before the first step.
        (line,) = [line for line in ran.stdout.splitlines() if " runs on " in line]
        assert (
            line == "grpo runs on 2 ranks, each with the whole model and its part of a micro-batch"
        )
        assert ran.stdout.index(line) < ran.stdout.index("grpo step=")
        assert (tmp_path / name / "model/tokenizer.json").is_file()
        weights[name] = (tmp_path / name / "model/adapter_model.safetensors").read_bytes()
    assert weights["killed"] == weights["terminated"] == weights["undisturbed"]


def test_an_error_on_two_ranks_is_one_line(base, sets, tmp_path):
    grpo = {"prompts_per_step": 3, "micro_batch_size": 2}
    ran = launch(*OURS, *grpo_stage(tmp_path, base=base, sets=sets, grpo=grpo))
    assert ran.returncode == 1
    assert one_line(ran, "Error: grpo.prompts_per_step=3: 2 processes")


def test_a_lost_rank_starts_again_on_two_nodes(tmp_path):
    """Launchers keep a store on every node; it must not give the dead rank's address."""
    meet = ("--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{free_port()}")
    node = ("-m", "stages.ranks", "--nnodes", "2", "--max-restarts", "1", *meet)
    worker = ("-m", "tests.lib.training.falls_out", tmp_path / "killed")
    with ThreadPoolExecutor(2) as threads:
        nodes = [threads.submit(launch, "python", *node, *worker) for _ in range(2)]
    ended = [each.result() for each in nodes]
    assert [each.returncode for each in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    assert "is done" in ended[0].stdout and "is done" in ended[1].stdout
    assert (tmp_path / "killed").exists()


def train_apart(base: Path, scratch: Path):
    """Make the weights of two ranks differ, as after training without averaged gradients."""
    args = TrainingArguments(str(scratch), use_cpu=True, ddp_backend="gloo", report_to="none")
    trainer = Trainer(AutoModelForCausalLM.from_pretrained(base), args)
    check_ranks_agree(trainer)
    next(trainer.model.parameters()).data.add_(trainer.args.process_index)
    check_ranks_agree(trainer)


def test_ranks_that_trained_apart_are_refused(base, tmp_path):
    ran = on_ranks(2, train_apart, base, tmp_path, log=tmp_path / "log")
    assert ran.returncode != 0
    assert "weights of 2 ranks differ" in ran.stdout
