"""Speed and memory of GRPO beside the alternatives: same shape, prompts, lengths, one process each.

Ways are `reckon` (our trainer on transformers), `trl` (stock `GRPOTrainer`), `unsloth` (our trainer
on Unsloth; with rollouts from a vLLM that shares its weights, where that is possible) and `vllm`
(generation alone). The ways that train have the same LoRA, types and batches, and each says what
its were. A random model hardly ever ends by itself, so that every completion has about the longest
length, whatever the way. Unsloth patches the others and memory counters belong to a process, so
`compare` starts one for each way; this module is what they run.
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
from lib.errors import UserError
from lib.planning.sizes import Shape
from tests.bench.gpu.contenders import Work, backend_of, generation, ours, rollouts_of

WAYS = ("reckon", "trl", "unsloth", "vllm")

GAP = "sampling/sampling_logp_difference/mean"

NEEDS = {"reckon": "trl", "trl": "trl", "unsloth": "unsloth", "vllm": "vllm"}
"""The package that a way cannot do without."""


def compare(work: Work, ways: tuple[str, ...], *, scratch: Path) -> dict[str, Any]:
    """Figures of each way, or why there are none; with the versions that gave them."""
    folder = scratch / "model"
    write_random(folder, work)
    figures = {way: _in_a_process(way, work, folder) for way in ways}
    return {"work": dataclasses.asdict(work), "versions": versions(), "ways": figures}


def _in_a_process(way: str, work: Work, folder: Path) -> dict[str, Any]:
    if importlib.util.find_spec(NEEDS[way]) is None:
        return {"skipped": f"{NEEDS[way]} is not installed"}
    command = [sys.executable, "-m", "tests.bench.gpu.comparison", way, str(folder)]
    asked = json.dumps(dataclasses.asdict(work))
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": "".join(done.stderr.strip().splitlines()[-1:])}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def failures(found: dict[str, Any]) -> list[str]:
    """The ways of `compare` that were tried and gave no figures, each with its last words."""
    return [f"{way}: {one['failed']}" for way, one in found["ways"].items() if "failed" in one]


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


def measure(way: str, work: Work, folder: Path) -> dict[str, Any]:
    """One way's figures, in this process: seconds a step, tokens a second, bytes at the peak."""
    from lib.engines.unsloth import import_first

    rollouts = rollouts_of(way, work)
    import_first(backend_of(way), generates=rollouts == "vllm")
    run = generation if way == "vllm" else _training
    seconds, tokens, settings = run(way, work, folder)
    return {
        "seconds_per_step": seconds,
        "tokens_per_second": tokens / seconds,
        **_memory(),
        "settings": {"weights": work.dtype, "rollouts": rollouts, **settings},
    }


def _training(way: str, work: Work, folder: Path) -> tuple[float, float, dict[str, Any]]:
    from transformers import TrainerCallback

    ends: list[float] = []

    class Clock(TrainerCallback):
        """When each step ended."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            ends.append(time.perf_counter())

    trainer = ours(way, work, folder)
    trainer.add_callback(Clock())
    trainer.train()
    lengths = [
        entry["completions/mean_length"]
        for entry in trainer.state.log_history
        if "completions/mean_length" in entry
    ]
    per_step = work.prompts * work.group * sum(lengths[1:]) / len(lengths[1:])
    return (ends[-1] - ends[0]) / (len(ends) - 1), per_step, _settings(trainer)


def _settings(trainer: Any) -> dict[str, Any]:
    """What was trained and how, as the trainer has it."""
    trained = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    gaps = [entry[GAP] for entry in trainer.state.log_history if GAP in entry]
    lora = getattr(trainer.model, "peft_config", {}).get("default")
    return {
        "trained_parameters": sum(weight.numel() for weight in trained),
        "trained": sorted({str(weight.dtype).removeprefix("torch.") for weight in trained}),
        "lora": {"rank": lora.r, "targets": sorted(lora.target_modules)} if lora else None,
        "autocast": "bfloat16" if trainer.args.bf16 else None,
        "gradient_checkpointing": bool(trainer.model.is_gradient_checkpointing),
        "micro_batch": trainer.args.per_device_train_batch_size,
        "sampler_gap": max(gaps) if gaps else None,
        "shares_weights_with_vllm": hasattr(trainer.model, "vllm_engine"),
    }


def _memory() -> dict[str, int]:
    """At the peak, as torch counts it; on a GPU also what is in use on the whole device now."""
    import resource

    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        peak = torch.cuda.max_memory_allocated()
        return {"peak_memory_bytes": peak, "device_memory_bytes": total - free}
    return {"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def main() -> None:
    """Measure the way that the command line names; the work comes by standard input."""
    asked = json.load(sys.stdin)
    work = Work(**{**asked, "shape": Shape(**asked["shape"])})
    print(json.dumps(measure(sys.argv[1], work, Path(sys.argv[2]))))  # noqa: T201


if __name__ == "__main__":
    main()
