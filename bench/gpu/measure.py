"""Measure one row of `bench.gpu.rows` in this process: `python -m bench.gpu` starts one for each.

Unsloth has to be imported before the libraries that it patches, and a process has one peak.
"""

import hashlib
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.gpu.rows import Row
from lib.artifacts.problems import Problem, write_problems
from lib.models.gpu import find_gpus
from lib.models.unsloth import import_first
from lib.params import Params, parse_params
from lib.params.model import DETERMINISTIC
from lib.planning.memory import longest_row, shape_in
from lib.planning.plan import phases_of
from lib.prompts import prompt_format, save_system, saved_system, system_prompt
from lib.prompts.formats import conversation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GAP = "sampling/sampling_logp_difference"

KILLED_AT = 3
"""Steps before the kill, one more than the newest checkpoint has."""

START = "spawn"
"""Start method of children: CUDA does not survive a fork."""

TOLERANCE = 0.05
"""Largest difference of a resumed run from a whole one, relative to training's change of the
adapters: SDPA's backward passes add in any order on a GPU. A lost optimiser is off by more than
half."""


def params_of(row: Row) -> Params:
    """Parse the row's params as a stage does."""
    return parse_params(row.params, origin="bench.gpu")


# The model and the problems


def write_base(folder: Path, row: Row) -> None:
    """Write a random model of the row's shape; its tokenizer is small: it decodes few ids."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from lib.models.tiny import train_tokenizer

    params = params_of(row)
    rendering = prompt_format(**params.prompt.rendering)
    system = system_prompt(params.prompt.system, prompt_format=rendering)
    common: dict[str, Any] = {"marks": (), "chat_template": rendering.chat_template}
    tokenizer = train_tokenizer(["12 + 3 = 15"], vocab_size=300, **common)
    if row.full:  # prompts about as long as a real tokenizer's, not a token for each letter
        prompt = conversation("", system=system)
        text = tokenizer.apply_chat_template(
            prompt, tokenize=False, add_generation_prompt=True, return_dict=False
        )
        tokenizer = train_tokenizer([text] * 2, vocab_size=600, **common)
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = AutoConfig.for_model(**row.shape, **special, bos_token_id=None)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, params.model.dtype))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_system(folder, system)


def base_in(scratch: Path, row: Row) -> Path:
    """Return the folder of the row's model, shared by rows of one shape, type and prompt."""
    decisive = [row.shape, row.params["prompt"], row.params["model"]["dtype"], row.full]
    name = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]
    folder = scratch / f"base-{name}"
    if not folder.is_dir():
        unfinished = folder.with_suffix(".unfinished")
        code = _in_a_child(write_base, unfinished, row)
        if code:
            raise RuntimeError(f"writing the random model ended with exit code {code}")
        unfinished.rename(folder)
    return folder


def _in_a_child(function: Callable[..., None], *arguments: Any) -> int | None:
    """Run a function in a child, to leave nothing on the GPU; return its exit code."""
    child = multiprocessing.get_context(START).Process(target=function, args=arguments)
    child.start()
    child.join()
    return child.exitcode


def problems_of(
    row: Row, params: Params, tokenizer: "PreTrainedTokenizerBase", *, system: str
) -> list[Problem]:
    """Make the problems of all steps, short ones or all as long as params allow."""
    from lib.training.sft import sft_dataset

    phase = "sft" if row.kind == "sft" else "grpo"
    if not row.full:
        count = params.grpo.prompts_per_step * params.grpo.max_steps
        texts = [f"What is {number} + 3?" for number in range(count)]
        return [Problem.create(problem=text, reference="0") for text in texts]

    def made(problem: int, solution: int) -> Problem:
        # No merge crosses a digit: each is one token.
        texts = {"problem": "7" * problem, "solution": "7" * solution}
        return Problem.create(**texts, reference="7")

    rendering = prompt_format(**params.prompt.rendering)
    (shortest,) = sft_dataset([made(1, 1)], tokenizer, prompt_format=rendering, system=system)
    longest = longest_row(params, phase)
    if phase == "sft":
        row_tokens = len(shortest["input_ids"])
        return [made(1, 1 + longest - row_tokens)] * (params.sft.batch_size * 5)
    prompt_tokens = shortest["completion_mask"].count(0)
    room = longest - params.rollout.max_new_tokens
    return [made(1 + room - prompt_tokens, 1)] * params.grpo.prompts_per_step


def trainer_of(
    params: Params, phase: str, problems: list[Problem], *, base: Path, scratch: Path
) -> Any:
    """Build the phase's own trainer, ready to start."""
    from tests.lib.training.steps import plain_grpo, plain_sft

    build = plain_sft if phase == "sft" else plain_grpo
    return build(problems, base, params, scratch)


# Measurements


def measure(row: Row, base: Path, scratch: Path) -> dict[str, Any]:
    """Measure the row's figures in this process."""
    if row.params["model"]["deterministic"]:
        os.environ |= DETERMINISTIC
    if row.kind in ("resume", "repeat"):
        return resume(row, base, scratch)
    if row.kind == "export":
        return export(row, base, scratch)
    import_first(row.params["model"]["backend"], generates=_samples_with_vllm(row))
    from lib.models.pretrained import load_tokenizer
    from lib.models.runtime import configure

    params = params_of(row)
    configure(seed=params.seed, threads=params.torch_threads)
    tokenizer = load_tokenizer(base)
    problems = problems_of(row, params, tokenizer, system=saved_system(base))
    return training(params, row, problems, base=base, scratch=scratch)


def _samples_with_vllm(row: Row) -> bool:
    return row.kind != "sft" and row.params["rollout"]["engine"] == "vllm"


def training(
    params: Params, row: Row, problems: list[Problem], *, base: Path, scratch: Path
) -> dict[str, Any]:
    """Train; return seconds of a step, tokens a second, and memory beside the plan's."""
    from transformers import TrainerCallback

    from lib.training.phase.console import SECONDS

    ends: list[float] = []
    generated: list[float] = []
    used: dict[str, int] = {}

    class Clock(TrainerCallback):
        """Note every step's end, and memory: engines are closed after the last one."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            ends.append(time.perf_counter())
            generated.append(SECONDS["generation"])
            used.update(memory())

    trainer = trainer_of(params, row.kind, problems, base=base, scratch=scratch)
    if row.kind == "grpo":
        from lib.planning.probe import with_signal

        with_signal(trainer)
    trainer.add_callback(Clock())
    if getattr(params, row.kind).eval_steps:
        validate(params, row.kind, trainer, base=base, folder=scratch)
    trainer.train()
    history = trainer.state.log_history
    if row.kind == "sft":
        tokens = float(params.sft.batch_size * longest_row(params, "sft"))
    else:
        name = "completions/mean_length"
        lengths = [entry[name] for entry in history if name in entry][1:]
        completions = params.grpo.prompts_per_step * params.grpo.group_size
        tokens = completions * sum(lengths) / len(lengths)
    seconds = (ends[-1] - ends[0]) / (len(ends) - 1)
    gaps = [{"mean": e[f"{GAP}/mean"]} for e in history if f"{GAP}/mean" in e]
    return {
        "steps": len(ends),
        "seconds_per_step": seconds,
        "tokens_per_second": tokens / seconds,
        # Of the timed steps; TRL's trainer does not report it.
        "generation_share": (generated[-1] - generated[0]) / (ends[-1] - ends[0]),
        **used,
        "planned": planned(params, row),
        # With stale weights the gap is small at first, and grows with each step.
        "sampler_gap_at_first_step": gaps[0] if gaps else None,
        "sampler_gap_at_last_step": gaps[-1] if gaps else None,
    }


def validate(params: Params, phase: str, trainer: Any, *, base: Path, folder: Path) -> None:
    """Validate as the phase does, before the first step and after the last, on short problems."""
    from lib.training.phase.validation import Validator

    count = params.validation.num_problems
    short = [Problem.create(problem=f"What is {n} + 3?", reference="0") for n in range(count)]
    for name in params.validation.sets:
        write_problems(folder / f"{name}.jsonl", short)
    validator = Validator(params, folder, init=base, base=base)
    steps = getattr(params, phase).eval_steps
    validator.watch(trainer, stage=phase, steps=steps, say=lambda line: None)


def planned(params: Params, row: Row) -> dict[str, float]:
    """Return the phase's memory as planned by `./reckon plan`."""
    (phase,) = (one for one in phases_of(params, shape_in(row.shape)) if one.name == row.kind)
    stated = {"peak_memory_bytes": sum(phase.memory.values())}
    gpus = find_gpus()
    return stated | ({"device_memory_bytes": phase.bytes_on(gpus[0].memory)} if gpus else {})


def memory() -> dict[str, int]:
    """Return the peak, by torch's count on a GPU, and the memory in use on the whole GPU."""
    import resource

    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        peak = torch.cuda.max_memory_allocated()
        return {"peak_memory_bytes": peak, "device_memory_bytes": total - free}
    return {"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def resume(row: Row, base: Path, scratch: Path) -> dict[str, Any]:
    """Run GRPO whole, and killed and resumed, or whole again; return their difference.

    Raises:
        RuntimeError: a process has an unexpected exit code.
    """
    whole, killed = scratch / "whole", scratch / "killed"
    repeats = row.kind == "repeat"
    runs = [(whole, 0), *([] if repeats else [(killed, KILLED_AT)]), (killed, 0)]
    codes = [_in_a_child(_run_phase, row, base, folder, kill_at) for folder, kill_at in runs]
    if codes != [-signal.SIGKILL if kill_at else 0 for _, kill_at in runs]:
        raise RuntimeError(f"exit codes of the whole, the killed, the last run: {codes}")
    from safetensors.torch import load_file

    def weights(folder: Path) -> dict[str, Any]:
        files = sorted((folder / "models/grpo").glob("*.safetensors"))
        return {name: value for file in files for name, value in load_file(file).items()}

    # Adapters' second matrices start at 0: their size is training's change.
    resumed = weights(killed)
    pairs = [(w, resumed[name]) for name, w in weights(whole).items() if "lora_B" in name]
    apart = sum((one - other).abs().sum().item() for one, other in pairs)
    share = apart / sum(one.abs().sum().item() for one, _ in pairs)
    tolerance = 0.0 if repeats else TOLERANCE
    log = (killed / "scratch/grpo/training.log").read_text(encoding="utf-8")
    return {
        "resumed_from_steps": [int(step) for step in re.findall("resumes from step ([0-9]+)", log)],
        "relative_difference": share,
        "tolerance": tolerance,
        "alike": share <= tolerance,
    }


def export(row: Row, base: Path, scratch: Path) -> dict[str, Any]:
    """Fold and write an adapter, and verify the export in a process of its own."""
    from lib.export.model import verify, write_model
    from lib.models.runtime import configure
    from lib.planning.memory import export_memory
    from tests.lib.export.conftest import make_adapter

    params, start = params_of(row), time.perf_counter()
    configure(seed=params.seed, threads=params.torch_threads)
    adapter = make_adapter(base, scratch / "adapter", params)
    prompts = [conversation(f"What is {n} + 3?", system="") for n in range(8)]
    written = write_model(adapter, scratch / "export", base=base, prompts=prompts, params=params)
    used = memory()
    verified = verify(scratch / "export", written, base=base, conversations=prompts)
    shape = shape_in(row.shape)
    assert shape is not None
    return {
        "errors": verified.errors,
        "seconds": time.perf_counter() - start,
        "planned": {"peak_memory_bytes": sum(export_memory(params, shape).values())},
        **used,
    }


def _run_phase(row: Row, base: Path, folder: Path, kill_at: int) -> None:
    """Run GRPO as its stage does, below `folder`."""
    from transformers import Trainer, TrainerCallback

    from lib.models.pretrained import load_tokenizer
    from lib.models.runtime import configure
    from lib.planning.probe import with_signal
    from lib.training.phase.run import run_phase
    from tests.lib.training.runs import outputs_in

    class Killed(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if kill_at and state.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    params = params_of(row)
    configure(seed=params.seed, threads=params.torch_threads)
    problems = problems_of(row, params, load_tokenizer(base), system=saved_system(base))
    folder.mkdir(exist_ok=True)

    def build(writing: Path) -> Trainer:
        writing.mkdir(parents=True, exist_ok=True)
        trainer = with_signal(trainer_of(params, "grpo", problems, base=base, scratch=writing))
        trainer.add_callback(Killed())
        return trainer

    run_phase(
        build,
        stage="grpo",
        section=params.grpo,
        init=base,
        outputs=outputs_in(folder, "grpo"),
        settings=params.model_dump(),
        inputs={"base": base},
        scratch=folder / "scratch",
    )


def main() -> None:
    """Measure the row on stdin; the argument is the folder of the rows' shared models."""
    row, models = Row(**json.load(sys.stdin)), Path(sys.argv[1])
    params_of(row)  # refused before anything is written
    base = base_in(models, row)
    with tempfile.TemporaryDirectory(dir=models) as scratch:
        print(json.dumps(measure(row, base, Path(scratch))))


if __name__ == "__main__":
    main()
