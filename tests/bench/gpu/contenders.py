"""What `tests.bench.gpu.comparison` compares: the same GRPO, set up in each of the ways."""

import dataclasses
import importlib.util
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.planning.sizes import Shape

if TYPE_CHECKING:
    from lib.artifacts.problems import Problem
    from lib.params import Params

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What every way has to do.

    Attributes:
        shape: of the random Qwen3.
        prompts: problems a step.
        group: completions per problem.
        tokens: longest completion.
        steps: timed steps; one more before them is not.
        dtype: of the weights; with bfloat16, training computes in it too.
        lora_rank: of the adapters that are trained, 0 for all weights.
    """

    shape: Shape
    prompts: int
    group: int
    tokens: int
    steps: int
    dtype: str
    lora_rank: int

    @property
    def mixed(self) -> bool:
        """Whether training computes in bfloat16 over whatever type the weights have."""
        return self.dtype == "bfloat16"


def rollouts_of(way: str, work: Work) -> str:
    """The engine that a way generates with; TRL's trainer has its own use of the same libraries."""
    fast = way == "unsloth" and work.lora_rank and work.mixed and importlib.util.find_spec("vllm")
    return "vllm" if way.endswith("vllm") or fast else "transformers"


def backend_of(way: str) -> str:
    """`model.backend` of a way."""
    return "unsloth" if way == "unsloth" else "transformers"


def parity(completions: list[Any], **columns: Any) -> list[float]:
    """A reward that varies within every group."""
    return [float(number % 2) for number in range(len(completions))]


def params_of(way: str, work: Work, folder: Path) -> "Params":
    """Ours for this work: the tiny preset with another model, batch and backend."""
    from ruamel.yaml import YAML

    from lib.params import compose_preset, parse_params

    content = YAML(typ="safe").load(compose_preset("tiny-cpu"))
    content["model"] |= {
        "name": str(folder),
        "dtype": work.dtype,
        "mixed_precision": "bf16" if work.mixed else "fp32",
        "max_seq_length": work.tokens + 64,
        "backend": backend_of(way),
    }
    content["model"]["lora"] |= {"rank": work.lora_rank, "target_modules": list(TARGETS)}
    content["rollout"] |= {
        "engine": rollouts_of(way, work),
        "max_new_tokens": work.tokens,
        "gpu_memory_utilization": 0.5,
    }
    content["evaluate"] |= {"max_new_tokens": 16}
    content["validation"] |= {"max_new_tokens": 16}
    content["grpo"] |= {
        "trainer": "trl" if way.startswith("trl") else "reckon",
        "max_steps": work.steps + 1,
        "prompts_per_step": work.prompts,
        "group_size": work.group,
        "micro_batch_size": work.group,
        "save_steps": 0,
        "eval_steps": 0,
    }
    return parse_params(content, origin="comparison")


def ours(way: str, work: Work, folder: Path) -> Any:
    """The trainer of a way, ready to start."""
    from lib.artifacts.problems import Problem

    problems = [Problem.create(problem=text, reference="0") for text in texts(work)]
    trainer = trainer_of(params_of(way, work, folder), problems, folder)
    trainer.reward_funcs = [parity, parity]
    return trainer


def trainer_of(params: "Params", problems: Sequence["Problem"], folder: Path) -> Any:
    """The trainer that params name, from the model in `folder`."""
    from lib.prompts import prompt_format
    from lib.trainers.grpo import build_grpo

    return build_grpo(
        problems,
        init=folder,
        base=folder,
        prompt_format=prompt_format(params.prompt.format),
        system="",
        grpo=params.grpo,
        rollout=params.rollout,
        reward=params.reward,
        model=params.model,
        seed=params.seed,
        scratch=Path(tempfile.mkdtemp()),
    )


def generation(way: str, work: Work, folder: Path) -> tuple[float, float, dict[str, Any]]:
    """Generation alone: seconds a round, tokens of it, and what there is to say of it."""
    from vllm import LLM, SamplingParams

    engine = LLM(str(folder), dtype=work.dtype, max_model_len=work.tokens + 64)
    sampling = SamplingParams(n=work.group, max_tokens=work.tokens, ignore_eos=True)
    asked = texts(work)[: work.prompts]
    engine.generate(asked, sampling)
    start = time.perf_counter()
    for _ in range(work.steps):
        engine.generate(asked, sampling)
    seconds = (time.perf_counter() - start) / work.steps
    return seconds, float(work.prompts * work.group * work.tokens), {"lora": None}


def texts(work: Work) -> list[str]:
    """As many problems as all steps take."""
    return [f"What is {number} + 3?" for number in range(work.prompts * (work.steps + 1))]
