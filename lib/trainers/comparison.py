"""Speed and memory of GRPO beside the alternatives: same shape, prompts, lengths, one process each.

Ways are `reckon` (our trainer on transformers), `trl` (stock `GRPOTrainer`), `unsloth` (our trainer
on Unsloth) and `vllm` (generation alone). A random model hardly ever ends by itself, so that every
completion has about the longest length, whatever the way. Unsloth patches the others and memory
counters belong to a process, so `compare` starts one for each way; this module is what they run.
"""

import dataclasses
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lib.artifacts import versions
from lib.engines.sizes import Shape
from lib.errors import UserError

WAYS = ("reckon", "trl", "unsloth", "vllm")

NEEDS = {"reckon": "trl", "trl": "trl", "unsloth": "unsloth", "vllm": "vllm"}
"""The package that a way cannot do without."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What every way has to do.

    Attributes:
        shape: of the random Qwen3.
        prompts: problems a step.
        group: completions per problem.
        tokens: longest completion.
        steps: timed steps; one more before them is not.
        dtype: of the weights.
    """

    shape: Shape
    prompts: int
    group: int
    tokens: int
    steps: int
    dtype: str


def compare(work: Work, ways: tuple[str, ...], *, scratch: Path) -> dict[str, Any]:
    """Figures of each way, or why there are none; with the versions that gave them."""
    folder = scratch / "model"
    write_random(folder, work)
    figures = {way: _in_a_process(way, work, folder) for way in ways}
    return {"work": dataclasses.asdict(work), "versions": versions(), "ways": figures}


def _in_a_process(way: str, work: Work, folder: Path) -> dict[str, Any]:
    if importlib.util.find_spec(NEEDS[way]) is None:
        return {"skipped": f"{NEEDS[way]} is not installed"}
    command = [sys.executable, "-m", "lib.trainers.comparison", way, str(folder)]
    asked = json.dumps(dataclasses.asdict(work))
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def write_random(folder: Path, work: Work) -> None:
    """A random Qwen3 of the shape, with a small tokenizer: its other rows are never decoded."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from lib.engines.tiny import train_tokenizer
    from lib.prompts import prompt_format

    template = prompt_format("working_out").chat_template
    tokenizer = train_tokenizer(["12 + 3 = 15"], vocab_size=300, marks=(), chat_template=template)
    shape = work.shape
    if shape.vocab < len(tokenizer):
        raise UserError(f"a shape needs at least {len(tokenizer)} rows, got {shape.vocab}")
    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).to(getattr(torch, work.dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measure(way: str, work: Work, folder: Path) -> dict[str, float]:
    """One way's figures, in this process: seconds a step, tokens a second, bytes at the peak."""
    from lib.engines.unsloth import import_first

    import_first("unsloth" if way == "unsloth" else "transformers", generates=False)
    seconds, tokens = _generation(work, folder) if way == "vllm" else _training(way, work, folder)
    return {
        "seconds_per_step": seconds,
        "tokens_per_second": tokens / seconds,
        "peak_memory_bytes": _peak_bytes(),
    }


def _training(way: str, work: Work, folder: Path) -> tuple[float, float]:
    from transformers import TrainerCallback

    ends: list[float] = []

    class Clock(TrainerCallback):
        """When each step ended."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            ends.append(time.perf_counter())

    trainer = _stock(work, folder) if way == "trl" else _ours(way, work, folder)
    trainer.add_callback(Clock())
    trainer.train()
    lengths = [
        entry["completions/mean_length"]
        for entry in trainer.state.log_history
        if "completions/mean_length" in entry
    ]
    per_step = work.prompts * work.group * sum(lengths[1:]) / len(lengths[1:])
    return (ends[-1] - ends[0]) / (len(ends) - 1), per_step


def _parity(completions: list[Any], **columns: Any) -> list[float]:
    """A reward that varies within every group."""
    return [float(number % 2) for number in range(len(completions))]


def _ours(way: str, work: Work, folder: Path) -> Any:
    import tempfile

    from ruamel.yaml import YAML

    from lib.params import compose_preset, parse_params
    from lib.problems.schema import Problem
    from lib.prompts import prompt_format
    from lib.trainers.grpo import build_grpo

    content = YAML(typ="safe").load(compose_preset("tiny-cpu"))
    content["model"] |= {
        "name": str(folder),
        "dtype": work.dtype,
        "max_seq_length": work.tokens + 64,
        "backend": "unsloth" if way == "unsloth" else "transformers",
    }
    content["rollout"] |= {"max_new_tokens": work.tokens}
    content["evaluate"] |= {"max_new_tokens": 16}
    content["validation"] |= {"max_new_tokens": 16}
    content["grpo"] |= {
        "max_steps": work.steps + 1,
        "prompts_per_step": work.prompts,
        "group_size": work.group,
        "micro_batch_size": work.group,
        "save_steps": 0,
        "eval_steps": 0,
    }
    params = parse_params(content, origin="comparison")
    trainer = build_grpo(
        [Problem.create(problem=text, reference="0") for text in _texts(work)],
        init=folder,
        base=folder,
        prompt_format=prompt_format("working_out"),
        system="",
        grpo=params.grpo,
        rollout=params.rollout,
        reward=params.reward,
        model=params.model,
        seed=0,
        scratch=Path(tempfile.mkdtemp()),
    )
    trainer.reward_funcs = [_parity, _parity]
    return trainer


def _stock(work: Work, folder: Path) -> Any:
    import tempfile

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from lib.engines.policy import load_tokenizer

    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, work.dtype)),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=work.steps + 1,
            per_device_train_batch_size=work.group,
            gradient_accumulation_steps=work.prompts,
            num_generations=work.group,
            max_completion_length=work.tokens,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=not torch.accelerator.is_available(),
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        reward_funcs=[_parity],
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": text}]} for text in _texts(work)]
        ),
        processing_class=load_tokenizer(folder),
    )


def _generation(work: Work, folder: Path) -> tuple[float, float]:
    from vllm import LLM, SamplingParams

    engine = LLM(str(folder), dtype=work.dtype, max_model_len=work.tokens + 64)
    sampling = SamplingParams(n=work.group, max_tokens=work.tokens, ignore_eos=True)
    texts = _texts(work)[: work.prompts]
    engine.generate(texts, sampling)
    start = time.perf_counter()
    for _ in range(work.steps):
        engine.generate(texts, sampling)
    seconds = (time.perf_counter() - start) / work.steps
    return seconds, float(work.prompts * work.group * work.tokens)


def _texts(work: Work) -> list[str]:
    return [f"What is {number} + 3?" for number in range(work.prompts * (work.steps + 1))]


def _peak_bytes() -> int:
    import resource

    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure the way that the command line names; the work comes by standard input."""
    asked = json.load(sys.stdin)
    work = Work(**{**asked, "shape": Shape(**asked["shape"])})
    print(json.dumps(measure(sys.argv[1], work, Path(sys.argv[2]))))  # noqa: T201


if __name__ == "__main__":
    main()
