"""params.yaml: every mistake has a line, every preset validates, DVC's writer changes one line."""

import collections
import math
import re
from typing import Any

import pytest
import torch
from dvc.utils.serialize import modify_yaml
from ruamel.yaml import YAML

from lib.artifacts import write_json
from lib.core.errors import UserError
from lib.params import compose_preset, load_params, parse_params, preset_names, preset_params
from lib.params.load import DPO, read_yaml
from lib.params.model import lost_updates
from lib.params.rules import doubts
from lib.rewards.functions import rewards_of
from tests.conftest import ROOT, run_command
from tests.lib.params.changes import Changes, accepted

ONE_MORE = [1.0, *(1.0 for _ in rewards_of("shaping"))]

OWN_LOSS = "plugins/objectives/examples.py:squared"


def problems_of(changes: Changes, preset: str = "tiny-cpu") -> list[str]:
    with pytest.raises(UserError) as caught:
        accepted(changes, preset)
    headline, *problems = caught.value.message.splitlines()
    counted = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    assert headline == f"params.yaml has {counted}:"
    return [problem.strip() for problem in problems]


def keys_of(problems: list[str]) -> list[str]:
    return [problem.partition(": ")[0] for problem in problems]


def test_all_problems_are_reported_at_once():
    wrong = {"sft.learning_rte": 0.1, "sft.warmup_ratio": 10, "prompt.format": "xlm"}
    wrong |= {"reward.stack": "tinny"}
    # Two contradictions within one section.
    fields = problems_of(wrong | {"grpo.group_size": 1, "grpo.epsilon": 2.0})
    assert sorted(keys_of(fields)) == sorted([*wrong, "grpo", "grpo"])
    between = {"evaluate.benchmarks": ["held-out"], "export.checkpoint": "dpo"}
    assert keys_of(problems_of(between)) == ["evaluate.benchmarks", "export.checkpoint"]


def test_a_wrong_entry_of_a_list_is_one_problem():
    """The shorter list must not count as a second problem."""
    source, benchmarks = "prepare.sft.sources.0.source", "evaluate.benchmarks"
    problems = problems_of({source: {"generator": "sftt"}, benchmarks: ["Held out"]})
    assert keys_of(problems) == [f"{source}.generator", f"{benchmarks}.0"]
    assert "'held_out'" in problems[0]
    assert problems[1].endswith("got 'Held out'")


GENERATOR, SOURCE, ROWS = "prepare.synthetic", "prepare.sft.sources.0.source", "mine.jsonl"


def from_file(adapter: str, **columns: str) -> dict[str, Any]:
    return {"path": f"data/raw/{ROWS}", "adapter": adapter, "columns": columns, "limit": "all"}


WEIGHTS = f"{GENERATOR}.level_weights"
BENCHMARK = "prepare.benchmarks.0"

PREFERRING = {
    "dpo.init": ["sft"],
    "evaluate.checkpoints": ["base", "sft", "dpo"],
    "export.checkpoint": "dpo",
}


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"sft.learning_rate": "1e-05"}, "sft.learning_rate", "number"),
        ({"sft.learning_rte": 1}, "sft.learning_rte", "did you mean `learning_rate`?"),
        ({"rollout.engine": "vlm"}, "rollout.engine", "did you mean `vllm`?"),
        ({"prompt.tags": ["<a>"]}, "prompt.tags", "four different tags"),
        ({"prompt.system": "file:notes/s.txt"}, "prompt.system", "dvc import-url notes/s.txt"),
        ({"reward.weights": [1.0]}, "reward.weights", "(format, answer)"),
        (
            {"reward.stack": "s0", "reward.weights": [1.0] * 4, "prompt.format": "boxed"},
            "reward `match_format_exactly` reads 4 tags, and prompt.format `boxed` has a box",
            "change one",
        ),
        ({"reward.weights": [math.nan, 1]}, "reward.weights.0", "finite"),
        *(
            (
                {"reward.stack": "shaping", "reward.extra": [name], "reward.weights": ONE_MORE},
                "reward",
                "two functions are named `overlong`",
            )
            for name in ("overlong", "plugins/rewards/own.py:overlong")
        ),
        ({"rollout.max_new_tokens": 256}, "rollout.max_new_tokens", "model.max_seq_length=256"),
        ({"validation.sets": ["validation"]}, "validation.sets", "prepare.validation_share"),
        ({"validation.weights": [1.0]}, "validation.weights", "(format, answer)"),
        (
            {"validation.stack": "shaping", "validation.weights": ONE_MORE[1:]},
            "validation.stack",
            "settings of their own",
        ),
        ({"grpo.select": "best"}, "grpo.select", "validation.sets"),
        ({"grpo.micro_batch_size": 96}, "grpo", "use 64 or 128"),
        (
            {"grpo.updates_per_rollout": 2, "grpo.micro_batch_size": 96},
            "grpo",
            "128 rows a step cannot be cut into micro_batch_size=96",
        ),
        (
            {"grpo.updates_per_rollout": 3, "grpo.save_steps": 12},
            "grpo",
            "into updates_per_rollout=3; use 2 or 4",
        ),
        ({"grpo.num_iterations": 2, "grpo.save_steps": 5}, "grpo", "use 4 or 6"),
        ({WEIGHTS: [0.0, 0.0]}, GENERATOR, "level_weights"),
        ({WEIGHTS: {"sft": [1], "grpo": [1], "gpro": [1]}}, f"{WEIGHTS}.gpro", "`grpo`?"),
        ({f"{GENERATOR}.harder_level": 4}, GENERATOR, "harder_level"),
        ({"prepare.sft.sources.0.weight": math.inf}, "prepare.sft.sources.0.weight", "all"),
        ({"prepare.grpo.num_train_examples": 9.0}, "prepare.grpo.num_train_examples", "9.0"),
        ({SOURCE: from_file("alpaca_eval")}, "prepare.sft.sources.0", "without answers"),
        ({SOURCE: {**from_file("table"), "limit": 0}}, f"{SOURCE}.limit", "all"),
        ({SOURCE: {**from_file("table"), "path": "data/raw/../x"}}, f"{SOURCE}.path", "data/raw"),
        ({SOURCE: {"known": "gsm9k", "limit": "all"}}, f"{SOURCE}.known", "`gsm8k`?"),
        ({SOURCE: {"paht": "data/raw/a"}}, SOURCE, "`generator`, `path`"),
        ({SOURCE: from_file("mmlu", problem="q")}, SOURCE, "`mmlu`"),
        ({f"{BENCHMARK}.name": "harder"}, "prepare", "twice"),
        ({SOURCE: {"generator": "held_out"}}, "prepare", "`held_out` is also a training set"),
        ({f"{BENCHMARK}.name": "sft"}, BENCHMARK, "training set"),
        ({"evaluate.checkpoints": ["base", "sft", "grpo", "dpo"]}, "evaluate.checkpoints", "dpo"),
        ({**PREFERRING, "evaluate.checkpoints": ["base", "dpo"]}, "evaluate.checkpoints", "`sft`"),
        ({**PREFERRING, "dpo.init": ["grpo"]}, "evaluate.checkpoints", "`grpo`"),
        ({**PREFERRING, "dpo.init": ["sft", "grpo"]}, "dpo.init", "at most 1"),
        ({"dpo.loss": "exo_pair"}, "dpo", "label_smoothing"),
        ({"dpo.pairs": 5}, "dpo.pairs", "got 5"),
        ({"evaluate.greedy": False, "evaluate.num_samples": 0}, "evaluate", "nothing to measure"),
        ({"grpo.reward_aggregation": "gdpo", "grpo.advantage": "mean"}, "grpo", "advantage=mean"),
        ({"grpo.epsilon": 1.0}, "grpo", "epsilon=1"),
        ({"grpo.loss": OWN_LOSS, "grpo.delta": 4.0}, "grpo", "delta=4 "),
        ({"grpo.loss": OWN_LOSS, "grpo.importance_level": "sequence"}, "grpo", "importance_level"),
        ({"grpo.delta": 4.0, "grpo.loss": "cispo"}, "grpo", "delta=4 "),
        ({"grpo.delta": 1.25, "grpo.epsilon_high": 0.28}, "grpo", "delta=1.25 "),
        ({"grpo.num_iterations": 2, "grpo.loss": "reinforce"}, "grpo", "num_iterations=2"),
        ({"grpo.importance_level": "sequence", "grpo.loss": "reinforce"}, "grpo", "token"),
        ({"grpo.dynamic_sampling": 4, "grpo.advantage": "none"}, "grpo", "dynamic_sampling=4"),
        ({**PREFERRING, "prompt.tool": "calculator"}, "dpo.init", "prompt.tool"),
        ({"prompt.tool": "calculater"}, "prompt.tool", "did you mean `calculator`?"),
        (
            {"grpo.trainer": "trl", "prompt.tool": "calculator"},
            "grpo.trainer=trl cannot do",
            "prompt.tool: calculator. Use",
        ),
        (
            {"grpo.trainer": "trl", "grpo.loss": "reinforce"},
            "grpo.trainer=trl cannot do",
            "grpo.loss: reinforce. Use",
        ),
        ({"grpo.curriculum_low": 0.9}, "grpo", "curriculum_high=0.875"),
    ],
    ids=str,
)
def test_a_wrong_value_is_one_line_with_its_key(changes, key, words):
    (problem,) = problems_of(changes)
    assert problem.startswith(f"{key}: ")
    assert words in problem


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2**32 - 1},
        {"grpo.num_iterations": 2, "grpo.save_steps": 6},
        {"prompt.system": "file:data/raw/system.txt"},
        {"rollout.max_new_tokens": 255, "evaluate.max_new_tokens": 255},
        {"evaluate.num_samples": 0},
        {"evaluate.greedy": False},
        {f"{BENCHMARK}.source": from_file("alpaca_eval")},
        {SOURCE: from_file("table")},
        {"grpo.epsilon": 1.0, "grpo.loss": "cispo"},
        PREFERRING,
    ],
    ids=str,
)
def test_what_could_be_mistaken_for_wrong_is_accepted(changes):
    accepted(changes)


def test_params_that_cannot_be_read_are_one_line(tmp_path):
    path = tmp_path / "params.yaml"
    with pytest.raises(UserError, match="make preset"):
        load_params(path)
    with pytest.raises(UserError, match=r"dvc\.lock is missing$"):
        read_yaml(tmp_path / "dvc.lock")
    with pytest.raises(UserError, match="cannot read"):
        load_params(tmp_path)
    for text, words in (
        ("seed: 0\nsft:\n  a: [1\n", r"line \d+: "),
        ("sft:\n\ta: 1\n", "line 2"),
        ("seed: 0\nseed: 1\n", "line 2.*duplicate key"),
        ("", "empty.*make preset"),
        ("<<<<<<< HEAD\nseed: 0\n=======\nseed: 1\n>>>>>>> x\n", "merge conflict.*git checkout"),
        # YAML only, without a form in JSON: keys that are no text, a list in itself.
        ("? [a, b]\n: 1\n", "params.yaml"),
        ("? {a: 1}\n: 1\n", "params.yaml"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=words) as raised:
            load_params(path)
        assert "\n" not in raised.value.message


@pytest.mark.parametrize("phase", ["sft", "grpo"])
def test_two_sets_from_outside_are_compared(phase):
    file = from_file("table")
    outside = {f"prepare.{phase}.sources.0.source": file, f"{BENCHMARK}.source": file}
    (problem,) = problems_of(outside)
    assert problem.startswith("prepare: contamination_ngram=0")
    accepted({**outside, "prepare.contamination_ngram": 1000})


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_validates(name):
    """A preset has no nulls, anchors or substitutions: DVC and other readers differ on them."""
    text = compose_preset(name)
    assert not re.search(r"\$\{|&|(?<!\S)null(?!\S)", text)
    parse_params(YAML(typ="safe").load(text), origin=name)


def test_the_base_preset_is_as_it_is_written():
    assert compose_preset("tiny-cpu") == (ROOT / "lib/presets/tiny-cpu.yaml").read_text("utf-8")


@pytest.fixture
def overlay(tmp_path):
    """Write an overlay; return its path."""

    def write(text):
        (tmp_path / "mine.yaml").write_text(text)
        return str(tmp_path / "mine.yaml")

    return write


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("grpo:\n  group_sise: 4\n", r"grpo\.group_sise: "),
        ("preset: mine\n", r"mine\.yaml: preset: .*tiny-cpu.*'mine'"),
    ],
)
def test_an_overlay_without_a_base_for_its_keys_is_refused(overlay, text, fault):
    with pytest.raises(UserError, match=fault):
        compose_preset(overlay(text))


def test_an_overlay_names_the_preset_below_it(overlay):
    mine = preset_params(overlay("preset: s4-gsm8k-lora-llama\ngrpo:\n  max_steps: 7\n")).flat()
    assert mine == {**preset_params("s4-gsm8k-lora-llama").flat(), "grpo.max_steps": 7}
    assert mine["reward.stack"] == "s4"


def test_a_list_in_an_overlay_keeps_the_comments_after_it(overlay):
    before, after = (
        collections.Counter(compose_preset(preset).splitlines())
        for preset in ("tiny-cpu", overlay("evaluate:\n  benchmarks:\n  - harder\n"))
    )
    assert before - after == {"  - held_out": 1}


def test_what_dvc_writes_for_one_key_changes_one_line(tmp_path):
    """The value is in scientific notation, and still a number to YAML 1.2."""
    path = tmp_path / "params.yaml"
    text = compose_preset("tiny-cpu")
    path.write_text(text, encoding="utf-8")
    with modify_yaml(path) as params:
        params["grpo"]["learning_rate"] = 1e-05
    before, after = text.splitlines(), path.read_text(encoding="utf-8").splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert [new.split("#")[0].split() for _, new in changed] == [["learning_rate:", "1e-05"]]
    assert load_params(path).grpo.learning_rate == 1e-05


def test_a_phase_has_the_optimizers_settings_unless_its_own():
    params = accepted({"optimizer.weight_decay": 0.1, "grpo.max_grad_norm": 0.5})
    phases = params.sft, params.grpo, params.dpo
    assert {each.weight_decay for each in phases} == {0.1}
    assert [each.max_grad_norm for each in phases] == [1.0, 0.5, 1.0]
    assert params.optimizer.max_grad_norm == 1.0
    assert "optimizer.weight_decay" not in params.flat()
    # A fault is the optimiser's, not that of each phase.
    wrong = {"optimizer.weight_decay": -1.0, "optimizer.beta": 1}
    assert sorted(keys_of(problems_of(wrong))) == ["optimizer.beta", "optimizer.weight_decay"]
    assert keys_of(problems_of({"grpo.weight_decay": -1.0})) == ["grpo.weight_decay"]


@pytest.mark.parametrize("init", ["sft", "grpo"])
def test_dpo_is_added_to_a_preset_with_all_its_keys(init):
    text = compose_preset("smoke", dpo=init)
    content = YAML(typ="safe").load(text)
    assert content["dpo"].keys() == read_yaml(DPO)["dpo"].keys()
    assert content["dpo"]["pairs"]["num_completions"] == 256  # the preset's own
    assert "# pairs per optimiser step" in text
    params = parse_params(content, origin="params.yaml")
    assert params.dpo.init == (init,)
    assert params.evaluate.checkpoints == ("base", "sft", "grpo", "dpo")
    # Without its keys, DPO's values would be in no params.yaml.
    assert keys_of(problems_of({"dpo": {"init": [init]}})) == ["dpo"]
    assert preset_params(str(DPO)).dpo.init == ("sft",)


def test_an_overlays_own_optimizer_settings_stand_in_its_phase(overlay):
    own = overlay("grpo:\n  weight_decay: 0.1\n")
    before, after = (compose_preset(each).splitlines() for each in ("tiny-cpu", own))
    place = after.index("  weight_decay: 0.1")
    assert after[place - 1].startswith("  learning_rate: 0.00045")
    assert after[:place] + after[place + 1 :] == before


def test_params_in_head_are_tiny_cpu():
    committed = run_command("git", "show", "HEAD:params.yaml")
    assert committed.stdout == compose_preset("tiny-cpu")


@pytest.mark.parametrize(
    "changes", [{"model.backend": "unsloth"}, {"model.lora.target_modules": ["lm_head"]}]
)
def test_a_float32_head_has_to_be_torchs(changes):
    keys = keys_of(problems_of({**changes, "grpo.cast_lm_head_to_fp32": True}))
    assert "grpo.cast_lm_head_to_fp32" in keys
    accepted({**changes, "grpo.cast_lm_head_to_fp32": False})


@pytest.mark.parametrize(("learning_rate", "moved"), [(5e-6, 0.078), (1e-5, 0.156), (2e-5, 0.30)])
def test_the_share_of_lost_updates_is_the_measured_one(learning_rate, moved):
    """Measured with AdamW on bfloat16 weights of deviation 0.02, 100 steps of one sign."""
    assert 1 - lost_updates(learning_rate) == pytest.approx(moved, abs=0.005)
    torch.manual_seed(0)
    weights = torch.nn.Parameter((0.02 * torch.randn(40_000)).to(torch.bfloat16))
    before = weights.detach().clone()
    optimizer = torch.optim.AdamW([weights], lr=learning_rate, weight_decay=0.0)
    for _ in range(100):
        weights.grad = torch.ones_like(weights)
        optimizer.step()
    assert (weights != before).float().mean().item() == pytest.approx(moved, abs=0.02)


@pytest.mark.parametrize(
    ("preset", "learning_rate", "doubted"),
    [
        ("recipe-1.5b", 1e-6, False), ("recipe-1.5b", 1e-5, True), ("recipe-1.5b", 1e-7, True),
        ("recipe-lora-gsm8k", 3e-5, False), ("recipe-lora-gsm8k", 1e-6, True),
        ("tiny-cpu", 0.00045, False),
    ],
)  # fmt: skip
def test_a_learning_rate_far_from_published_ones_is_doubted(preset, learning_rate, doubted):
    lines = doubts(accepted({"grpo.learning_rate": learning_rate}, preset))
    assert any(line.startswith("grpo.learning_rate: ") for line in lines) == doubted


def test_a_rate_that_bfloat16_weights_lose_is_warned_of(tmp_path, capsys):
    content = YAML(typ="safe").load(compose_preset("s3-cs336"))
    path = tmp_path / "params.yaml"

    def warned(**model):
        write_json(path, {**content, "model": {**content["model"], **model}})
        load_params(path)
        return capsys.readouterr().err.splitlines()

    assert warned() == []
    sft, grpo = warned(dtype="bfloat16")
    assert "sft.learning_rate: " in sft and "70%" in sft and "grpo.learning_rate: " in grpo
    assert warned(dtype="bfloat16", lora={**content["model"]["lora"], "rank": 8}) == []
