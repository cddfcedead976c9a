"""`--quick`: the real run, five steps long."""

import functools

import pytest
from ruamel.yaml import YAML

from lib.core.errors import UserError
from lib.params import compose_preset as compose
from lib.params import parse_params, preset_names
from lib.params.presets import QUICK_ROWS, QUICK_STEPS

compose_preset = functools.cache(compose)

PRESETS = [name for name in preset_names() if name[0] in "rs" and name != "smoke"]

KEPT = {
    "model": None,
    "prompt": None,
    "rollout": None,
    "reward": None,
    "sft": ("batch_size", "micro_batch_size", "learning_rate", "optimizer", "packing"),
    "grpo": ("group_size", "micro_batch_size", "loss", "learning_rate"),
    "evaluate": ("engine", "benchmarks", "max_new_tokens", "batch_size"),
}
"""Keys with an effect on memory and method, by section; None for a whole section."""


def _read(name: str, *, quick: bool) -> dict:
    return YAML(typ="safe").load(compose_preset(name, quick=quick))


@pytest.mark.parametrize("name", PRESETS)
def test_what_decides_memory_and_method_is_the_presets(name):
    whole, quick = (_read(name, quick=quick) for quick in (False, True))
    for section, keys in KEPT.items():
        for key in keys or whole[section]:
            assert quick[section][key] == whole[section][key]


@pytest.mark.parametrize("name", PRESETS)
def test_each_phase_of_the_preset_takes_five_steps(name):
    whole, quick = (_read(name, quick=quick) for quick in (False, True))
    examples = quick["prepare"]["sft"]["num_train_examples"]
    steps = quick["sft"]["num_epochs"] * examples / quick["sft"]["batch_size"]
    assert steps == (QUICK_STEPS if whole["sft"]["num_epochs"] else 0)
    assert quick["grpo"]["max_steps"] == (QUICK_STEPS if whole["grpo"]["max_steps"] else 0)
    prompts = quick["grpo"]["prompts_per_step"]
    assert prompts <= whole["grpo"]["prompts_per_step"]
    assert quick["prepare"]["grpo"]["num_train_examples"] == max(QUICK_ROWS, prompts)
    synthetic = quick["prepare"]["synthetic"]
    for source in (each["source"] for each in quick["prepare"]["benchmarks"]):
        rows = source.get("limit") or synthetic[f"num_{source['generator']}"]
        assert rows == QUICK_ROWS


@pytest.mark.parametrize(("engine", "prompts"), [("transformers", 8), ("vllm", 64)])
def test_quick_samples_fewer_problems_where_it_takes_long(engine, prompts, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(f"rollout: {{engine: {engine}}}\ngrpo: {{prompts_per_step: 64}}")
    assert _read(str(own), quick=True)["grpo"]["prompts_per_step"] == prompts


@pytest.mark.parametrize(("iterations", "save_steps"), [(1, 5), (2, 10), (8, 40)])
def test_quick_saves_between_two_generations(iterations, save_steps, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(f"grpo: {{num_iterations: {iterations}, save_steps: {4 * iterations}}}")
    assert _read(str(own), quick=True)["grpo"]["save_steps"] == save_steps


def test_quick_validates_and_saves_only_where_the_run_does(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("sft: {eval_steps: 0, save_steps: 0}\ngrpo: {eval_steps: 0}\n")
    quick = _read(str(own), quick=True)
    assert [quick["sft"]["eval_steps"], quick["sft"]["save_steps"]] == [0, 0]
    assert [quick["grpo"]["eval_steps"], quick["grpo"]["logging_steps"]] == [0, 1]


@pytest.mark.parametrize("text", ["evaluate: {overrides: [{benchmark: harder}]}", "sft: 3"])
def test_quick_reports_the_faults_of_an_overlay(text, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(text)
    with pytest.raises(UserError, match=text.partition(":")[0]):
        compose_preset(str(own), quick=True)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", PRESETS)
def test_another_model_leaves_a_preset_its_form(name):
    own = parse_params(_read(name, quick=False), origin=name)
    text = compose_preset(name, model="smollm2")
    other = parse_params(YAML(typ="safe").load(text), origin=name).flat()
    changed = {key for key, value in own.flat().items() if other[key] != value}
    exchanged = {"model.name", "model.revision", "model.backend", "model.attention"}
    lengths = {"model.max_seq_length", "rollout.device", "evaluate.overrides"} | {
        f"{section}.{key}"
        for section in ("validation", "rollout", "evaluate")
        for key in ("engine", "max_new_tokens")
    }
    assert changed <= exchanged | lengths
    with pytest.raises(UserError, match="smollm2"):
        compose_preset(name, model="another")
