"""params.yaml: every mistake has a line, every preset validates, DVC's writer changes one line."""

import collections
import copy
import io
import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from dvc.utils.serialize import modify_yaml
from ruamel.yaml import YAML

from lib.errors import UserError
from lib.objectives.entropy import EntropyCoefficient
from lib.params import compose_preset, load_params, parse_params, preset_names, preset_params
from lib.params.model import lost_updates

ROOT = Path(__file__).parents[3]

OWN_LOSS = "plugins/objectives.py:squared"


@pytest.fixture
def content() -> dict[str, Any]:
    return YAML(typ="safe").load(compose_preset("tiny-cpu"))


def problems_of(content: dict[str, Any]) -> list[str]:
    with pytest.raises(UserError) as caught:
        parse_params(content, origin="params.yaml")
    headline, *problems = caught.value.message.splitlines()
    counted = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    assert headline == f"params.yaml has {counted}:"
    return [problem.strip() for problem in problems]


def test_all_problems_are_said_at_once(content: dict[str, Any]) -> None:
    content["sft"]["learning_rte"] = 0.1
    content["sft"]["warmup_ratio"] = 10
    content["grpo"]["group_size"] = 1
    assert set(problems_of(content)) == {
        "sft.learning_rte: unknown key; did you mean `learning_rate`?",
        "sft.warmup_ratio: must be at most 1, got 10",
        "grpo: group_size=1; group-relative advantages need at least 2",
    }


def test_a_wrong_entry_of_a_list_is_one_problem(content: dict[str, Any]) -> None:
    """The entry goes, and the list that is left must not be called too short beside it."""
    content["prepare"]["sft"]["sources"][0]["source"] = {"generator": "sftt"}
    content["evaluate"]["benchmarks"] = ["Held out"]
    assert problems_of(content) == [
        "prepare.sft.sources.0.source.generator: "
        "must be one of 'sft', 'grpo', 'held_out', 'harder', got 'sftt'",
        "evaluate.benchmarks.0: string should match pattern '^[a-z0-9][a-z0-9_-]*$', "
        "got 'Held out'",
    ]


def test_an_empty_list_is_too_short(content: dict[str, Any]) -> None:
    content["prepare"]["sft"]["sources"] = []
    (problem,) = problems_of(content)
    assert problem.startswith("prepare.sft.sources: tuple should have at least 1 item")


def test_unknown_names_are_said_together_with_wrong_values(content: dict[str, Any]) -> None:
    content["prompt"]["format"] = "xlm"
    content["reward"]["stack"] = "tinny"
    content["sft"]["warmup_ratio"] = 10
    assert problems_of(content) == [
        "sft.warmup_ratio: must be at most 1, got 10",
        "prompt.format: no `xlm`; did you mean `xml`?",
        "reward.stack: no `tinny`; did you mean `tiny`?",
    ]


@pytest.mark.parametrize("broken", [None, [], "text", {"name": 1}, [1, {"source": []}]])
def test_names_are_looked_up_in_content_of_any_shape(content: dict[str, Any], broken: Any) -> None:
    content["prepare"]["benchmarks"] = broken
    content["reward"] = broken
    assert all(problem.startswith(("prepare.", "reward")) for problem in problems_of(content))


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("sft", "learning_rate", "1e-05", "sft.learning_rate: input should be a valid number"),
        ("sft", "num_epochs", 1.5, "sft.num_epochs: input should be a valid integer"),
        ("sft", "num_epochs", True, "sft.num_epochs: input should be a valid integer"),
        ("sft", "learning_rate", 0, "sft.learning_rate: must be more than 0, got 0"),
        ("rollout", "temperature", -1, "rollout.temperature: must be more than 0, got -1"),
        ("grpo", "loss", "ppo", "grpo.loss: must be one of 'grpo', 'bnpo', 'dr_grpo', 'dapo'"),
        ("prompt", "format", "xlm", "prompt.format: no `xlm`; did you mean `xml`?"),
        ("evaluate", "benchmarks", ["held-out"], "evaluate.benchmarks: no `held-out`; did you"),
        ("prompt", "tags", ["<a>"], "prompt.tags: ['<a>']; expected four different tags"),
        ("prompt", "layout", "chatlm", "prompt.layout: must be one of 'plain', 'chatml'"),
        ("reward", "stack", "tinny", "reward.stack: no `tinny`; did you mean `tiny`?"),
        ("reward", "weights", [1.0], "reward.weights: 1 weights for 2 functions (format, answer)"),
        ("reward", "extra", ["overlng"], "reward.extra: no `overlng`"),
        ("export", "checkpoint", "best", "export.checkpoint: must be one of"),
        ("reward", "weights", [math.nan, 1], "reward.weights.0: input should be a finite number"),
        ("reward", "cosine_wrong", [0, math.inf], "reward.cosine_wrong.1: input should be a fin"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(
    content: dict[str, Any], section: str, key: str, value: Any, said: str
) -> None:
    content[section][key] = value
    (problem,) = problems_of(content)
    assert problem.startswith(said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": 1.0}, "grpo: epsilon=1"),
        ({"correction_cap": 0.5}, "grpo.correction_cap: must be at least 1, got 0.5"),
        ({"adam_beta1": 1.0}, "grpo.adam_beta1: must be less than 1, got 1"),
        ({"adam_beta2": 1.0}, "grpo.adam_beta2: must be less than 1, got 1"),
        ({"loss": OWN_LOSS, "delta": 4.0}, "grpo: delta=4 "),
        ({"loss": OWN_LOSS, "importance_level": "sequence"}, "grpo: importance_level=sequence"),
        ({"entropy_coef": 1.5, "entropy_target": 0.3}, "grpo: entropy_coef=1.5"),
    ],
)
def test_a_grpo_value_that_means_nothing_is_refused(
    content: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    content["grpo"] |= changes
    (problem,) = problems_of(content)
    assert problem.startswith(said)


@pytest.mark.parametrize(
    "changes", [{"epsilon": 1.0, "loss": "cispo"}, {"entropy_coef": EntropyCoefficient.MOST}]
)
def test_a_grpo_value_at_its_bound_is_accepted(
    content: dict[str, Any], changes: dict[str, Any]
) -> None:
    content["grpo"] |= {"entropy_target": 0.3} | changes
    parse_params(content, origin="params.yaml")


def test_a_seed_beyond_32_bits_is_refused(content: dict[str, Any]) -> None:
    content["seed"] = 2**32
    assert problems_of(content) == ["seed: must be at most 4294967295, got 4294967296"]
    content["seed"] = 2**32 - 1
    assert parse_params(content, origin="params.yaml").seed == 2**32 - 1


def test_an_infinite_weight_and_a_broken_count_are_one_line_each(content: dict[str, Any]) -> None:
    content["prepare"]["sft"]["sources"][0]["weight"] = math.inf
    content["prepare"]["grpo"]["num_train_examples"] = 10.0
    assert problems_of(content) == [
        "prepare.sft.sources.0.weight: must be finite, or `all`, got inf",
        "prepare.grpo.num_train_examples: must be a whole number or `all`, got 10.0",
    ]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"level_weights": [0.0, 0.0]}, "level_weights"),
        ({"level_weights": [1.0, -1.0]}, "level_weights"),
        ({"level_weights": {"sft": [1.0], "grpo": [0.0]}}, "level_weights"),
        ({"level_weights": {"sft": [1.0], "grpo": []}}, "level_weights.grpo: "),
        ({"level_weights": {"sft": [1.0], "grpo": [1.0], "gpro": [1.0]}}, "did you mean `grpo`?"),
        ({"harder_level": 4}, "harder_level"),
        ({"distractor_rate": 1.5}, "distractor_rate"),
        ({"max_factor": 1}, "max_factor"),
        ({"max_operand": 100}, "max_operand"),
    ],
)
def test_a_generator_that_could_make_nothing_is_refused(
    content: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    content["prepare"]["synthetic"] |= changes
    (problem,) = problems_of(content)
    assert problem.startswith("prepare.synthetic")
    assert key in problem


@pytest.mark.parametrize("text", ["? [a, b]\n: 1\n", "a: &a [*a]\n", "? {a: 1}\n: 1\n"])
def test_yaml_that_has_no_json_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_params(path)
    assert caught.value.message.startswith(str(path))
    assert len(caught.value.message.splitlines()) == 1


def test_a_folder_instead_of_params_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^cannot read .*: Is a directory$"):
        load_params(tmp_path)


@pytest.mark.parametrize(("steps", "others"), [(5, "4 or 6"), (1, r"none \(0\) or 2")])
def test_a_checkpoint_between_two_generations_is_refused_with_the_steps_beside_it(
    content: dict[str, Any], steps: int, others: str
) -> None:
    content["grpo"] |= {"num_iterations": 2, "save_steps": steps}
    (problem,) = problems_of(content)
    assert problem.startswith(f"grpo: save_steps={steps} falls between two generations")
    assert re.search(rf"\(num_iterations=2\); use {others}$", problem)
    content["grpo"]["save_steps"] = 6
    assert parse_params(content, origin="params.yaml").grpo.save_steps == 6


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sets": ["gsm"]}, "validation.sets: no `gsm`; there are held_out, harder, validation"),
        ({"sets": ["validation"]}, "validation.sets: nothing is held back while prepare."),
        ({"sets": ["harder", "harder"]}, "validation.sets: `harder` stands there twice"),
        (
            {"stack": "s5"},
            "validation.stack: no `s5`; there are r1_zero, s0, s1, s4, shaping, tiny",
        ),
        ({"weights": [1.0]}, "validation.weights: 1 weights for 2 functions (format, answer)"),
        ({"max_new_tokens": 256}, "validation.max_new_tokens: 256 is not below"),
    ],
)
def test_a_validation_that_cannot_be_is_refused(
    content: dict[str, Any], changes: dict[str, Any], problem: str
) -> None:
    content["validation"] |= changes
    (said,) = problems_of(content)
    assert said.startswith(problem)


def test_checkpoints_that_are_never_written_cannot_be_kept(content: dict[str, Any]) -> None:
    content["sft"] |= {"save_steps": 0, "keep_checkpoints": 2}
    assert problems_of(content) == ["sft: keep_checkpoints=2 keeps nothing while save_steps is 0"]


def test_packed_rows_are_not_sorted_by_length_too(content: dict[str, Any]) -> None:
    content["sft"] |= {"packing": True, "group_by_length": True}
    assert problems_of(content) == [
        "sft: packing=true fills every row, which leaves group_by_length nothing to sort; "
        "set one of them to false"
    ]
    content["sft"]["packing"] = False
    parse_params(content, origin="params.yaml")


def test_a_micro_batch_that_does_not_tile_the_step_names_two_that_do(
    content: dict[str, Any],
) -> None:
    content["grpo"]["micro_batch_size"] = 96
    (problem,) = problems_of(content)
    assert problem == (
        "grpo: prompts_per_step=32 x group_size=8 = 256 completions a step "
        "cannot be cut into micro_batch_size=96; use 64 or 128"
    )


def test_a_system_prompt_is_read_from_data_raw_alone(content: dict[str, Any]) -> None:
    content["prompt"]["system"] = "file:notes/system.txt"
    (problem,) = problems_of(content)
    assert problem.startswith("prompt.system: notes/system.txt is not under data/raw/, so an edit")
    assert "dvc import-url notes/system.txt data/raw/system.txt" in problem
    content["prompt"]["system"] = "file:data/raw/system.txt"
    parse_params(content, origin="params.yaml")


@pytest.mark.parametrize("section", ["rollout", "evaluate"])
def test_completions_have_to_leave_room_for_a_prompt(content: dict[str, Any], section: str) -> None:
    content[section]["max_new_tokens"] = content["model"]["max_seq_length"] = 100
    assert problems_of(content) == [
        f"{section}.max_new_tokens: 100 is not below model.max_seq_length=100, "
        "which holds prompt and completion together"
    ]
    content[section]["max_new_tokens"] = 99
    parse_params(content, origin="params.yaml")


def from_file(adapter: str, **columns: str) -> dict[str, Any]:
    return {"path": "data/raw/mine.jsonl", "adapter": adapter, "columns": columns, "limit": "all"}


@pytest.mark.parametrize("phase", ["sft", "grpo"])
def test_instructions_without_answers_are_no_training_data(
    content: dict[str, Any], phase: str
) -> None:
    content["prepare"][phase]["sources"][0]["source"] = from_file("alpaca_eval")
    assert problems_of(content) == [
        f"prepare.{phase}.sources.0.source: `alpaca_eval` has problems without answers, "
        "which can be a benchmark and no training data"
    ]
    content["prepare"]["benchmarks"][0]["source"] = from_file("alpaca_eval")
    content["prepare"][phase]["sources"][0]["source"] = {"generator": "sft"}
    parse_params(content, origin="params.yaml")


@pytest.mark.parametrize("adapter", ["mmlu", "alpaca_eval"])
def test_columns_that_an_adapter_would_ignore_are_refused(
    content: dict[str, Any], adapter: str
) -> None:
    content["prepare"]["benchmarks"][0]["source"] = from_file(adapter, problem="task")
    assert problems_of(content) == [
        f"prepare.benchmarks.0.source.columns: adapter `{adapter}` knows its columns and would "
        "ignore these; set {}"
    ]


@pytest.mark.parametrize("name", ["sft", "grpo", "validation"])
def test_a_benchmark_is_not_called_like_a_training_set(content: dict[str, Any], name: str) -> None:
    content["prepare"]["benchmarks"][0]["name"] = name
    content["evaluate"]["benchmarks"] = content["validation"]["sets"] = ["harder"]
    assert problems_of(content) == [
        f"prepare.benchmarks.0.name: `{name}` is the name of a training set; choose another"
    ]


@pytest.mark.parametrize(
    ("key", "names"),
    [("checkpoints", ["grpo", "base", "grpo"]), ("benchmarks", ["harder", "harder"])],
)
def test_nothing_is_evaluated_twice(content: dict[str, Any], key: str, names: list[str]) -> None:
    content["evaluate"][key] = names
    assert problems_of(content) == [f"evaluate.{key}: `{names[0]}` stands there twice"]


@pytest.mark.parametrize("phase", ["sft", "grpo"])
def test_two_sets_from_outside_are_compared_with_each_other(
    content: dict[str, Any], phase: str
) -> None:
    content["prepare"][phase]["sources"][0]["source"] = from_file("table")
    parse_params(content, origin="params.yaml")
    content["prepare"]["benchmarks"][0]["source"] = from_file("table")
    assert problems_of(content) == [
        "prepare: contamination_ngram=0 would train on whatever a training set shares with a "
        "benchmark, and both hold sets that the generator did not make; "
        "set 8, or 1000 to compare whole texts only"
    ]
    content["prepare"]["contamination_ngram"] = 1000
    parse_params(content, origin="params.yaml")


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("tiny-cpu", {}),
        ("tiny-cpu", {"rollout": {"engine": "vllm-server"}}),
        ("s0-qwen3-4b", {}),  # the vLLM below Unsloth's policy
        ("s0-qwen3-4b", {"sft": {"eval_steps": 0}, "validation": {"engine": "vllm"}}),
        ("s3-cs336", {"rollout": {"engine": "transformers"}}),
        ("s2-math-sft", {"sft": {"eval_steps": 0}}),
        ("s2-math-sft", {"validation": {"engine": "transformers"}}),
        ("s1-qwen2.5-0.5b", {"grpo": {"trainer": "trl", "beta": 0.0}}),
    ],
)
def test_a_device_that_no_engine_takes_is_refused(preset: str, changes: dict[str, Any]) -> None:
    content = YAML(typ="safe").load(compose_preset(preset))
    for section, values in changes.items():
        content[section] |= values
    content["rollout"]["device"] = "cuda:1"
    (problem,) = problems_of(content)
    assert problem.startswith("rollout.device=cuda:1: no engine of this run takes it (rollouts: ")


@pytest.mark.parametrize("preset", ["s1-qwen2.5-0.5b", "s2-math-sft", "s3-cs336"])
def test_a_device_that_rollouts_or_validation_take_is_accepted(preset: str) -> None:
    content = YAML(typ="safe").load(compose_preset(preset))
    content["rollout"]["device"] = "cuda:1"
    assert parse_params(content, origin="params.yaml").rollout.device == "cuda:1"


def test_an_order_that_shuffling_would_undo_is_refused(content: dict[str, Any]) -> None:
    content["prepare"]["grpo"]["difficulty"]["easy_first"] = True
    (problem,) = problems_of(content)
    assert problem.startswith("prepare.grpo.difficulty.easy_first: has no effect while")
    content["grpo"]["shuffle"] = False
    assert parse_params(content, origin="params.yaml").grpo.shuffle is False


def test_the_exported_checkpoint_has_to_be_measured(content: dict[str, Any]) -> None:
    content["evaluate"]["checkpoints"] = ["base", "sft"]
    (problem,) = problems_of(content)
    assert problem.startswith("export.checkpoint: `grpo` is not in evaluate.checkpoints")


def test_a_missing_key_is_an_error_since_there_are_no_defaults(content: dict[str, Any]) -> None:
    del content["seed"]
    (problem,) = problems_of(content)
    assert problem.startswith("seed: missing")


def test_broken_yaml_is_one_line_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("seed: 0\nsft:\n  a: [1\n")
    with pytest.raises(UserError, match=r"not valid YAML: line \d+: "):
        load_params(path)


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="make preset PRESET=tiny-cpu"):
        load_params(tmp_path / "params.yaml")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_validates(name: str) -> None:
    parse_params(YAML(typ="safe").load(compose_preset(name)), origin=name)


def test_the_base_preset_is_kept_in_the_form_that_it_is_written_in() -> None:
    assert compose_preset("tiny-cpu") == (ROOT / "lib/presets/tiny-cpu.yaml").read_text("utf-8")


def test_a_preset_with_a_key_that_the_base_lacks_is_refused(tmp_path: Path) -> None:
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("grpo:\n  group_sise: 4\n")
    with pytest.raises(UserError, match=r"grpo\.group_sise: unknown key"):
        compose_preset(str(overlay))


def test_a_list_in_an_overlay_replaces_the_list_and_keeps_the_comments_after_it(
    tmp_path: Path,
) -> None:
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("evaluate:\n  benchmarks:\n  - harder\n")
    before, after = (
        collections.Counter(compose_preset(preset).splitlines())
        for preset in ("tiny-cpu", str(overlay))
    )
    assert before - after == {"  - held_out": 1}


def test_an_unknown_preset_lists_those_that_there_are() -> None:
    with pytest.raises(UserError, match=r"no preset `tiny`; .*tiny-cpu, .*smoke"):
        compose_preset("tiny")


def test_what_dvc_writes_for_one_key_changes_one_line(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    text = compose_preset("tiny-cpu")
    path.write_text(text, encoding="utf-8")
    with modify_yaml(path) as params:
        params["grpo"]["group_size"] = 16
    before, after = text.splitlines(), path.read_text(encoding="utf-8").splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert [new.split("#")[0].split() for _, new in changed] == [["group_size:", "16"]]


def test_scientific_notation_that_dvc_writes_is_read_as_a_number(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(compose_preset("tiny-cpu"), encoding="utf-8")
    with modify_yaml(path) as params:
        params["grpo"]["learning_rate"] = 1e-05
    assert "1e-05" in path.read_text(encoding="utf-8")
    assert load_params(path).grpo.learning_rate == 1e-05


def test_params_in_head_are_tiny_cpu() -> None:
    committed = subprocess.run(
        ["git", "show", "HEAD:params.yaml"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert committed.stdout == compose_preset("tiny-cpu")


def test_params_cannot_be_changed_once_read(content: dict[str, Any]) -> None:
    params = parse_params(copy.deepcopy(content), origin="params.yaml")
    with pytest.raises(ValueError, match="frozen"):
        params.seed = 1  # type: ignore[misc]


def test_presets_hold_no_nulls_anchors_or_substitutions() -> None:
    for name in preset_names():
        text = compose_preset(name)
        stream = io.StringIO(text)
        assert "${" not in text
        assert "&" not in text
        assert None not in _leaves(YAML(typ="safe").load(stream))


def _leaves(content: Any) -> list[Any]:
    if isinstance(content, dict):
        return [leaf for value in content.values() for leaf in _leaves(value)]
    if isinstance(content, list):
        return [leaf for value in content for leaf in _leaves(value)]
    return [content]


def test_a_reward_that_counts_tags_refuses_a_format_without_them(content: dict[str, Any]) -> None:
    content["reward"]["stack"] = "s0"
    content["reward"]["weights"] = [1.0, 1.0, 1.0, 1.0]
    content["prompt"]["format"] = "boxed"
    (problem,) = problems_of(content)
    assert "counts tags, and prompt.format `boxed` has none" in problem


def test_shaping_rewards_find_their_settings_in_params(content: dict[str, Any]) -> None:
    content["reward"]["extra"] = ["overlong", "repetition", "cosine_length"]
    content["reward"]["weights"] = [0.25, 1.0, 0.1, 0.1, 0.1]
    params = parse_params(content, origin="params.yaml")
    settings = params.reward.settings(max_completion_tokens=48)
    assert settings["max_completion_tokens"] == 48
    assert settings["overlong_cache_tokens"] == 16


def preferring(content: dict[str, Any]) -> dict[str, Any]:
    content["dpo"]["init"] = ["sft"]
    content["evaluate"]["checkpoints"] = ["base", "sft", "dpo"]
    content["export"]["checkpoint"] = "dpo"
    return content


def test_dpo_starts_from_what_its_init_names(content: dict[str, Any]) -> None:
    assert "dpo" not in parse_params(content, origin="params.yaml").starts
    assert parse_params(preferring(content), origin="params.yaml").starts["dpo"] == "sft"


@pytest.mark.parametrize(
    ("checkpoints", "init", "said"),
    [
        (["base", "sft", "dpo"], [], "evaluate.checkpoints: `dpo` is there, but dpo.init is []"),
        (["base", "sft"], ["sft"], "dpo.init is [sft] and `dpo` is not there, so that nobody"),
        (["base", "dpo"], ["sft"], "dpo.init is [sft] and `sft` is not there, which what it"),
        (["base", "sft", "dpo"], ["grpo"], "dpo.init is [grpo] and `grpo` is not there"),
    ],
)
def test_an_optional_phase_is_measured_against_its_start(
    content: dict[str, Any], checkpoints: list[str], init: list[str], said: str
) -> None:
    content["evaluate"]["checkpoints"], content["dpo"]["init"] = checkpoints, init
    content["export"]["checkpoint"] = checkpoints[-1]
    (problem,) = problems_of(content)
    assert said in problem


def test_params_stay_few() -> None:
    assert len(preset_params("tiny-cpu").flat()) <= 173


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("model", "backend", "unsloth"),
        ("lora", "target_modules", ["q_proj", "lm_head"]),
    ],
)
def test_a_head_in_float32_that_is_not_torchs_own_is_refused(
    content: dict[str, Any], section: str, name: str, value: Any
) -> None:
    content["grpo"]["cast_lm_head_to_fp32"] = True
    target = content["model"]["lora"] if section == "lora" else content[section]
    target[name] = value
    assert any("grpo.cast_lm_head_to_fp32" in problem for problem in problems_of(content))
    content["grpo"]["cast_lm_head_to_fp32"] = False
    parse_params(content, origin="params.yaml")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": "exo_pair"}, "dpo: loss=exo_pair needs label_smoothing above 0; 0.001 is usual"),
        ({"label_smoothing": 0.1}, "dpo: label_smoothing=0.1 has no effect with loss=sigmoid"),
        ({"loss": "sigmoyd"}, "dpo.loss: must be one of 'sigmoid', "),
        ({"micro_batch_size": 5}, "dpo: batch_size=32 = 32 pairs a step cannot be cut into"),
        ({"init": ["sft", "grpo"]}, "dpo.init: tuple should have at most 1 item"),
    ],
)
def test_a_knob_of_dpo_that_could_not_act_is_refused(
    content: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    preferring(content)["dpo"].update(changes)
    assert problems_of(content)[0].startswith(said)


@pytest.mark.parametrize(("learning_rate", "moved"), [(5e-6, 0.078), (1e-5, 0.156), (2e-5, 0.30)])
def test_the_share_of_lost_updates_is_the_measured_one(learning_rate: float, moved: float) -> None:
    """AdamW on bfloat16 weights of deviation 0.02, 100 steps of one sign."""
    assert 1 - lost_updates(learning_rate) == pytest.approx(moved, abs=0.005)
    torch.manual_seed(0)
    weights = torch.nn.Parameter((0.02 * torch.randn(40_000)).to(torch.bfloat16))
    before = weights.detach().clone()
    optimizer = torch.optim.AdamW([weights], lr=learning_rate, weight_decay=0.0)
    for _ in range(100):
        weights.grad = torch.ones_like(weights)
        optimizer.step()
    assert (weights != before).float().mean().item() == pytest.approx(moved, abs=0.02)


def test_a_rate_that_bfloat16_weights_lose_is_warned_of_with_the_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = YAML(typ="safe").load(compose_preset("s3-cs336"))
    path = tmp_path / "params.yaml"

    def warned(**model: Any) -> list[str]:
        path.write_text(json.dumps({**content, "model": {**content["model"], **model}}))
        load_params(path)
        return capsys.readouterr().err.splitlines()

    assert warned() == []
    sft, grpo = warned(dtype="bfloat16")
    assert sft.startswith(
        f"Warning: {path}: sft.learning_rate: 2e-05 on bfloat16 weights leaves 70%"
    )
    assert "grpo.learning_rate: 1e-05 on bfloat16 weights leaves 85%" in grpo
    assert warned(dtype="bfloat16", lora={**content["model"]["lora"], "rank": 8}) == []
