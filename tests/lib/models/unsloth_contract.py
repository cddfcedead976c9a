"""Contract of the Unsloth backend, with the fake on a CPU and with the real package on a GPU.

`python -m tests.lib.models.unsloth_contract NAME FOLDER` runs one of `CHECKS` with the installed
package. It has to be imported before transformers: hence no import here leads to transformers.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.params import preset_params
from lib.problems.generated import synthetic_sets
from lib.prompts import prompt_format

GAP = "sampling/sampling_logp_difference/mean"
SMOKE = preset_params("smoke")
SETS = synthetic_sets(SMOKE.prepare.synthetic, seed=SMOKE.seed)


def settings(dtype: str = "bfloat16") -> Any:
    changes = {
        "backend": "unsloth",
        "dtype": dtype,
        "mixed_precision": "bf16" if dtype == "bfloat16" else "fp32",
        "gradient_checkpointing": True,
    }
    return SMOKE.model.model_copy(update=changes)


def write_base(folder: Path) -> Path:
    """Write the smoke preset's base model."""
    from lib.models.tiny import write_tiny

    own_format = prompt_format(SMOKE.prompt.format)
    write_tiny(
        folder / "base", SETS.sft, prompt_format=own_format, model=SMOKE.model, seed=SMOKE.seed
    )
    return folder / "base"


def adapters(policy: Any) -> dict[str, Any]:
    return {n: w.detach().cpu().clone() for n, w in policy.named_parameters() if "lora_" in n}


def assert_comes_back(trainer: Any, folder: Path, *, base: Path, model: Any) -> None:
    """Save the trained adapter, and assert that the next phase starts from the same weights."""
    import torch

    from lib.models.load import trainable_policy
    from lib.models.pretrained import load_tokenizer
    from lib.models.save import save_policy

    save_policy(trainer.model, load_tokenizer(base), folder)
    trained = adapters(trainer.model)
    again = adapters(trainable_policy(folder, base=base, settings=model, seed=1))
    assert again.keys() == trained.keys()
    assert all(torch.equal(weight, trained[name]) for name, weight in again.items())


def assert_small_gaps(trainer: Any, *, model: Any, limit: float) -> None:
    """Assert that two steps trained on completions of the policy's own weights."""
    gaps = [entry[GAP] for entry in trainer.state.log_history if GAP in entry]
    assert len(gaps) == 2
    assert max(gaps) < (0.05 if model.dtype == "bfloat16" else limit)


def check_only_adapters_are_trained(base: Path, scratch: Path, model: Any) -> None:
    from lib.models.load import trainable_policy

    policy = trainable_policy(base, base=base, settings=model, seed=7)
    trained = [name for name, weight in policy.named_parameters() if weight.requires_grad]
    assert all("lora_" in name for name in trained)
    adapted = policy.config.num_hidden_layers * len(model.lora.target_modules)
    assert len(trained) == 2 * adapted
    assert policy.training


def check_sft_trains_and_the_next_phase_goes_on_from_its_adapter(
    base: Path, scratch: Path, model: Any
) -> None:
    from tests.lib.training.steps import plain_sft

    trainer = plain_sft(SETS.sft[:32], base, SMOKE, scratch / "scratch", model=model)
    trainer.args.max_steps = 2  # the first is at a learning rate of 0
    trainer.train()
    assert any("mean_token_accuracy" in entry for entry in trainer.state.log_history)
    trained = adapters(trainer.model)
    assert any(weight.any() for name, weight in trained.items() if "lora_B" in name)
    assert_comes_back(trainer, scratch / "sft", base=base, model=model)


def grpo(base: Path, scratch: Path, model: Any, *, engine: str = "vllm") -> Any:
    """Build a trainer of two steps, with varying rewards and a large learning rate."""
    from tests.lib.training.steps import plain_grpo, varying

    changes = {"learning_rate": 0.05, "max_steps": 2, "warmup_ratio": 0.0}
    trainer = plain_grpo(
        SETS.grpo,
        base,
        SMOKE,
        scratch / "scratch",
        grpo=SMOKE.grpo.model_copy(update=changes),
        rollout=SMOKE.rollout.model_copy(update={"engine": engine, "gpu_memory_utilization": 0.3}),
        model=model,
    )
    trainer.grading.rewards = [varying, varying]
    return trainer


def check_grpo_trains_on_what_the_shared_vllm_generates(
    base: Path, scratch: Path, model: Any
) -> None:
    import torch

    from lib.engines.vllm import SharedVllmEngine

    trainer = grpo(base, scratch, model)
    assert isinstance(trainer.engine, SharedVllmEngine)
    start = adapters(trainer.model)
    trainer.train()
    assert_small_gaps(trainer, model=model, limit=1e-5)
    trained = adapters(trainer.model)
    assert any(not torch.equal(weight, start[name]) for name, weight in trained.items())
    assert_comes_back(trainer, scratch / "grpo", base=base, model=model)


def check_grpo_trains_on_what_the_policy_generates_itself(
    base: Path, scratch: Path, model: Any
) -> None:
    trainer = grpo(base, scratch, model, engine="transformers")
    # The policy checkpoints by itself.
    assert model.gradient_checkpointing
    assert trainer.args.gradient_checkpointing is False
    trainer.train()
    assert_small_gaps(trainer, model=model, limit=1e-4)


CHECKS: dict[str, Callable[[Path, Path, Any], None]] = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


def main() -> None:
    """Run the check named on the command line."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    from lib.models.unsloth import import_first

    import_first("unsloth", generates="vllm" in name)
    CHECKS[name](write_base(folder), folder, settings())


if __name__ == "__main__":
    main()
