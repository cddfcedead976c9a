"""Contract of the Unsloth backend, with the fake on a CPU and with the real package on a GPU.

`python -m tests.lib.engines.unsloth_contract NAME FOLDER` runs one of `CHECKS` with the installed
package. It has to be imported before transformers: hence no import here leads to transformers.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

GAP = "sampling/sampling_logp_difference/mean"


def settings(dtype: str = "bfloat16") -> Any:
    from lib.params import preset_params

    changes = {
        "backend": "unsloth",
        "dtype": dtype,
        "mixed_precision": "bf16" if dtype == "bfloat16" else "fp32",
        "gradient_checkpointing": True,
    }
    return preset_params("smoke").model.model_copy(update=changes)


def write_base(folder: Path) -> Path:
    """Write the smoke preset's base model."""
    from lib.engines import tiny
    from lib.params import preset_params
    from lib.problems.generated import synthetic_sets
    from lib.prompts import prompt_format

    smoke = preset_params("smoke")
    tiny.write_tiny(
        folder / "base",
        synthetic_sets(smoke.prepare.synthetic, seed=smoke.seed).sft,
        prompt_format=prompt_format(smoke.prompt.format),
        model=smoke.model,
        seed=smoke.seed,
    )
    return folder / "base"


def adapters(policy: Any) -> dict[str, Any]:
    return {n: w.detach().cpu().clone() for n, w in policy.named_parameters() if "lora_" in n}


def check_only_adapters_are_trained(base: Path, scratch: Path, model: Any) -> None:
    from lib.engines.policy import trainable_policy

    policy = trainable_policy(base, base=base, settings=model, seed=7)
    trained = [name for name, weight in policy.named_parameters() if weight.requires_grad]
    assert all("lora_" in name for name in trained)
    adapted = policy.config.num_hidden_layers * len(model.lora.target_modules)
    assert len(trained) == 2 * adapted
    assert policy.training


def check_sft_trains_and_the_next_phase_goes_on_from_its_adapter(
    base: Path, scratch: Path, model: Any
) -> None:
    import torch

    from lib.engines.policy import load_tokenizer, save_policy, trainable_policy
    from lib.params import preset_params
    from lib.problems.generated import synthetic_sets
    from tests.lib.training.steps import plain_sft

    smoke = preset_params("smoke")
    problems = synthetic_sets(smoke.prepare.synthetic, seed=smoke.seed).sft[:32]
    trainer = plain_sft(problems, base, smoke, scratch / "scratch", model=model)
    trainer.args.max_steps = 2  # the first is at a learning rate of 0
    trainer.train()
    assert any("mean_token_accuracy" in entry for entry in trainer.state.log_history)
    trained = adapters(trainer.model)
    assert any(weight.any() for name, weight in trained.items() if "lora_B" in name)
    save_policy(trainer.model, load_tokenizer(base), scratch / "sft")
    again = adapters(trainable_policy(scratch / "sft", base=base, settings=model, seed=1))
    assert again.keys() == trained.keys()
    assert all(torch.equal(weight, trained[name]) for name, weight in again.items())


def grpo(base: Path, scratch: Path, model: Any, *, engine: str = "vllm") -> Any:
    """Build a trainer of two steps, with varying rewards and a large learning rate."""
    from lib.params import preset_params
    from lib.problems.generated import synthetic_sets
    from tests.lib.training.steps import plain_grpo, varying

    smoke = preset_params("smoke")
    changes = {"learning_rate": 0.05, "max_steps": 2, "warmup_ratio": 0.0}
    trainer = plain_grpo(
        synthetic_sets(smoke.prepare.synthetic, seed=smoke.seed).grpo,
        base,
        smoke,
        scratch / "scratch",
        grpo=smoke.grpo.model_copy(update=changes),
        rollout=smoke.rollout.model_copy(update={"engine": engine, "gpu_memory_utilization": 0.3}),
        model=model,
    )
    trainer.grading.rewards = [varying, varying]
    return trainer


def check_grpo_trains_on_what_the_shared_vllm_generates(
    base: Path, scratch: Path, model: Any
) -> None:
    import torch

    from lib.engines.policy import load_tokenizer, save_policy, trainable_policy
    from lib.engines.vllm import SharedVllmEngine

    trainer = grpo(base, scratch, model)
    assert isinstance(trainer.engine, SharedVllmEngine)
    start = adapters(trainer.model)
    trainer.train()
    gaps = [entry[GAP] for entry in trainer.state.log_history if GAP in entry]
    assert len(gaps) == 2
    assert max(gaps) < (0.05 if model.dtype == "bfloat16" else 1e-5)
    trained = adapters(trainer.model)
    assert any(not torch.equal(weight, start[name]) for name, weight in trained.items())
    save_policy(trainer.model, load_tokenizer(base), scratch / "grpo")
    again = adapters(trainable_policy(scratch / "grpo", base=base, settings=model, seed=1))
    assert all(torch.equal(weight, trained[name]) for name, weight in again.items())


def check_grpo_trains_on_what_the_policy_generates_itself(
    base: Path, scratch: Path, model: Any
) -> None:
    trainer = grpo(base, scratch, model, engine="transformers")
    # The policy checkpoints by itself.
    assert model.gradient_checkpointing
    assert trainer.args.gradient_checkpointing is False
    trainer.train()
    gaps = [entry[GAP] for entry in trainer.state.log_history if GAP in entry]
    assert len(gaps) == 2
    assert max(gaps) < (0.05 if model.dtype == "bfloat16" else 1e-4)


Check = Callable[[Path, Path, Any], None]

CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


def main() -> None:
    """Run the check named on the command line."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    from lib.engines.unsloth import import_first

    import_first("unsloth", generates="vllm" in name)
    CHECKS[name](write_base(folder), folder, settings())


if __name__ == "__main__":
    main()
