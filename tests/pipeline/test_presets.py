"""The five systems run through their stages on a CPU, with their own settings but small.

Changed are the weights' size, the number of steps (in SFT, of problems), and parts that need a GPU
(Unsloth, flash attention), other packages (vLLM) or the Hub. Graded completions are short, since
random weights never end one; GRPO's have the preset's own length. Another test asserts the preset's
own values of all of these. Assertions on a trainer are on its resolved arguments.
"""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import trl
from peft import PeftModel
from ruamel.yaml import YAML

from lib.artifacts import read_json
from lib.engines.base import encode
from lib.export import model as exporting
from lib.export.reload import read_forms
from lib.params import compose_preset, model_shapes, preset_params
from lib.problems.generated import synthetic_sets
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.phase.validation import Validator
from tests.attention_16bit import stand_in
from tests.lib.models.hub_models import COMMIT, write_snapshot
from tests.pipeline.source_rows import lay_out
from tests.pipeline.stages import evaluate, export, grade, metrics_of, run, trainers_of_stages
from tests.pipeline.systems import SYSTEMS

ATTENTION_AND_MLP = {f"{each}_proj" for each in ("q", "k", "v", "o", "gate", "up", "down")}
GENERATION = ("validation", "rollout", "evaluate")
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "stop_strings")


@pytest.fixture
def checkout(request, tmp_path, monkeypatch):
    """Make a folder with the preset's params, made small, its data and its model in a Hub cache."""
    name = request.getfixturevalue("preset")
    content = YAML(typ="safe").load(compose_preset(name))
    content["evaluate"]["max_new_tokens"] = content["validation"]["max_new_tokens"] = 32
    if content["grpo"]["max_steps"]:
        content["grpo"]["max_steps"] = 2
    # One checkpoint is enough: the others have the same shape.
    content["evaluate"]["checkpoints"] = [content["export"]["checkpoint"]]
    lay_out_checkout(content, tmp_path, monkeypatch, architecture=SYSTEMS[name]["architecture"])
    return content


def lay_out_checkout(
    content: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, **model: Any
) -> None:
    """Make `content` run on a CPU without a network; `folder` becomes the working directory.

    Args:
        model: see `write_model`.
    """
    small = preset_params("smoke").prepare.synthetic
    sets = synthetic_sets(small.model_copy(update={"num_sft": 60, "bare_answer_rate": 0.0}), seed=0)
    worked = [problem for problem in sets.sft if problem.solution]
    lay_out(content, folder, worked=worked)
    # `make fetch` would write a commit where a preset has none.
    revision = content["model"]["revision"] = content["model"]["revision"] or COMMIT
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    stand_in(monkeypatch)
    # tests/lib/export covers the verification in a new process.
    monkeypatch.setattr(exporting, "read_afresh", read_forms)
    write_snapshot(
        folder / "hub",
        name=content["model"]["name"],
        texts=["Tom has 3 apples and 4 pears. How many has he in all?", "3 + 4 = 7"],
        commit=revision,
        **model,
    )
    content["model"]["backend"] = "transformers"
    # The tiny tokenizer needs more tokens for a prompt than the real one.
    content["model"]["max_seq_length"] += 256
    for section in ("validation", "rollout", "evaluate"):
        content[section]["engine"] = "transformers"
    content["rollout"]["device"] = ""
    YAML().dump(content, folder / "params.yaml")
    monkeypatch.chdir(folder)


def resolved(trainer: Any, name: str) -> Any:
    """Return a trainer's resolved value of a setting, named as in systems.yaml."""
    if name == "optimizer":
        return type(getattr(trainer.optimizer, "optimizer", trainer.optimizer)).__name__
    if name == "sampling":
        values = {key: getattr(trainer.sampling, key) for key in SAMPLING}
        return values | {"stop_strings": list(values["stop_strings"])}
    if name == "validated":
        (callback,) = (
            one for one in trainer.callback_handler.callbacks if isinstance(one, Validator)
        )
        return ["+".join(callback.sets), callback.steps]
    if isinstance(trainer, PolicyGradientTrainer):
        if name == "max_new_tokens":
            return trainer.sampling.max_new_tokens
        if not hasattr(trainer.args, name):
            return getattr(trainer.grpo, name)
    return getattr(trainer.args, name)


@pytest.mark.parametrize("preset", SYSTEMS)
def test_a_preset_has_what_the_run_on_a_cpu_changes(preset):
    expected, own = SYSTEMS[preset], preset_params(preset)
    model, rollout, evaluate = own.model, own.rollout, own.evaluate
    settings = {
        "model": model.name,
        "gpu": {key: getattr(model, key) for key in expected["gpu"]},
        "engines": [rollout.engine, rollout.gpu_memory_utilization, evaluate.engine],
        "phases": [own.sft.num_epochs, own.grpo.max_steps],
        "lengths": [model.max_seq_length, rollout.max_new_tokens],
        "sampled": [evaluate.temperature, evaluate.top_p],
    }
    assert settings == {name: expected[name] for name in settings}
    # transformers' decoding loop is launch-bound on a GPU, so that validation is on vLLM; and a
    # preset needs one GPU only.
    assert (own.validation.engine, rollout.device) == ("vllm", "")


@pytest.mark.slow
@pytest.mark.parametrize("preset", SYSTEMS)
def test_a_system_runs_as_itself(preset, checkout, monkeypatch):
    expected, own = SYSTEMS[preset], preset_params(preset)
    trainers = trainers_of_stages(monkeypatch)
    run("prepare")
    assert not list(Path("data/models/base").glob("*.safetensors"))
    run("sft")
    run("grpo")
    assert set(trainers) == {phase for phase in ("sft", "grpo") if expected[phase]}
    for phase, trainer in trainers.items():
        settings = {name: resolved(trainer, name) for name in expected[phase]}
        assert settings == expected[phase], phase
        _check_policy(trainer, expected)
    if expected["sft"]:
        _check_trained_text(trainers["sft"], expected)
    if expected["grpo"]:
        _check_rollouts(trainers["grpo"], expected)

    name = own.export.checkpoint
    evaluate(name)
    grade(name)
    export(name)
    run("report")
    assert set(own.evaluate.benchmarks) <= set(read_json(metrics_of(name)))
    config = read_json(Path("data/models/export/config.json"))
    assert config["model_type"] == expected["architecture"]
    assert f"| {name}" in Path("reports/report.md").read_text("utf-8")
    assert Path("reports/report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "template", "turn_tokens"),
    [
        ("recipe-lora-gsm8k", "qwen2_5", ["<|im_start|>", "<|im_end|>"]),
        (
            "recipe-1.5b",
            "deepseek_r1_distill",
            ["<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"],
        ),
        ("recipe-qwen3", "qwen3", ["<|im_start|>", "<|im_end|>"]),
    ],
)
def test_a_recipe_runs_from_data_to_report(preset, template, turn_tokens, tmp_path, monkeypatch):
    """With TRL's copy of the model's own template."""
    own = preset_params(preset)
    content = YAML(typ="safe").load(compose_preset(preset))
    content["grpo"] |= {"max_steps": 2, "prompts_per_step": 4, "micro_batch_size": 4}
    content["model"]["max_seq_length"] = 512
    for section in (*content["evaluate"]["overrides"], *map(content.get, GENERATION)):
        section["max_new_tokens"] = 32
    content["evaluate"] |= {"num_samples": 2, "checkpoints": ["grpo"]}
    lay_out_checkout(
        content,
        tmp_path,
        monkeypatch,
        architecture=model_shapes()[own.model.name]["model_type"],
        chat_template=(TEMPLATES / f"{template}.jinja").read_text("utf-8"),
        turn_tokens=turn_tokens,
    )
    trainers = trainers_of_stages(monkeypatch)
    for stage in ("prepare", "sft", "grpo"):
        run(stage)
    trainer = trainers["grpo"]
    assert trainer.state.global_step == 2
    assert isinstance(trainer.model, PeftModel) == bool(own.model.lora.rank)
    assert [reward.__name__ for reward in trainer.reward_funcs] == ["boxed"]
    tokenizer = trainer.processing_class
    (ids,) = encode(tokenizer, [trainer.problems[0]["prompt"]])
    assert "\\boxed" in tokenizer.decode(ids)
    evaluate("grpo")
    grade("grpo")
    export("grpo")
    run("report")
    assert set(own.evaluate.benchmarks) <= set(read_json(metrics_of("grpo")))


def _check_policy(trainer: Any, expected: dict[str, Any]) -> None:
    adapted = isinstance(trainer.model, PeftModel)
    assert adapted == bool(expected["lora"])
    if adapted:
        config = trainer.model.peft_config["default"]
        assert [config.r, config.lora_alpha, config.lora_dropout] == expected["lora"]
        assert set(config.target_modules) == ATTENTION_AND_MLP


def _check_trained_text(trainer: Any, expected: dict[str, Any]) -> None:
    """Assert that loss is on completion and EOS only, after the system's own prompt."""
    assert trainer.args.completion_only_loss
    batch = trainer.data_collator([trainer.train_dataset[0]])
    tokens, trained = batch["input_ids"][0], batch["labels"][0] != -100
    _check_prompt(trainer.processing_class.decode(tokens[~trained]), expected)
    assert tokens[trained][-1] == trainer.processing_class.eos_token_id


def _check_rollouts(trainer: Any, expected: dict[str, Any]) -> None:
    names = [function.__name__ for function in trainer.reward_funcs]
    assert [names, trainer.reward_weights.tolist()] == expected["rewards"]
    assert trainer.state.global_step == 2
    prompt = trainer.problems[0]["prompt"]
    system = [message["content"] for message in prompt if message["role"] == "system"]
    assert system == ([expected["system"]] if expected["system"] else [])
    tokenizer = trainer.processing_class
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    _check_prompt(text, expected)


def _check_prompt(text: str, expected: dict[str, Any]) -> None:
    begins, ends = expected["prompt"]
    assert text.startswith(begins), text
    assert text.endswith(ends), text
    assert expected["system"] in text
