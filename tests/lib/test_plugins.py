"""Plugins: names, files, copies, and what is said of one that does not keep its promise."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lib.artifacts import fingerprint, read_json, write_provenance
from lib.errors import UserError
from lib.objectives.advantages import group_advantages
from lib.objectives.losses import policy_loss
from lib.objectives.own import objective, try_advantage, try_loss
from lib.params.load import parse_params, read_yaml
from lib.planning.inputs import input_problems
from lib.plugins import copy_plugins, is_plugin, load_plugin, plugin_hashes, plugins_in
from lib.problems.rows import RowFault
from lib.problems.sources import read_rows
from lib.prompts import prompt_format
from lib.prompts.saved import save_format, saved_format
from lib.verifier.rewards import build_rewards, stack_range

ROOT = Path(__file__).parents[2]

Write = Callable[..., str]

BOUNDED = (
    "from lib.verifier.rewards import BoundedReward\n"
    "part = BoundedReward(lambda rollout: {}, (0.0, 1.0))"
)


try_groups_of_4 = partial(try_advantage, group_size=4)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes plugins/own.py in an empty working directory; gives the name of `part` in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    load_plugin.cache_clear()

    def written(source: str) -> str:
        Path("plugins").mkdir(exist_ok=True)
        Path("plugins/own.py").write_text(source, encoding="utf-8")
        load_plugin.cache_clear()
        return "plugins/own.py:part"

    return written


def scores(name: str, *completions: str) -> list[float]:
    (reward,) = build_rewards([name], prompt_format=prompt_format("xml"))
    return reward(
        prompts=[[]] * len(completions),
        completions=[[{"role": "assistant", "content": text}] for text in completions],
        reference=["5"] * len(completions),
    )


@pytest.mark.parametrize(
    "name", ["plugins/a.py", "plugins/../a.py:f", "/plugins/a.py:f", "lib/a.py:f", "tiny", None, 3]
)
def test_only_a_name_in_a_file_of_plugins_is_one(name: object) -> None:
    assert not is_plugin(name)


def test_the_role_is_the_key_s() -> None:
    settings = {
        "reward": {"extra": ["overlong", "plugins/a.py:f"], "stack": "tiny"},
        "prompt": {"format": "plugins/b.py:g"},
        "prepare": {"benchmarks": [{"source": {"adapter": "plugins/c.py:h"}}]},
        "grpo": {"loss": "plugins/d.py:i", "advantage": "group"},
        "model": {"name": "plugins/e.py:j"},
    }
    assert set(plugins_in(settings)) == {
        ("rewards", "plugins/a.py:f"),
        ("formats", "plugins/b.py:g"),
        ("adapters", "plugins/c.py:h"),
        ("objectives", "plugins/d.py:i"),
    }


def test_a_stage_of_dvc_reads_the_copy(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write("part = 'at the start'")
    settings = {"extra": [name]}
    copy_plugins(settings, {"rewards": Path("data/plugins/rewards")})
    write("part = 'edited during the run'")
    monkeypatch.setenv("DVC_STAGE", "grpo")
    assert load_plugin(name, "rewards") == "at the start"
    copied = plugin_hashes(settings)
    for stage in ("check", None):
        load_plugin.cache_clear()
        monkeypatch.setenv("DVC_STAGE", stage) if stage else monkeypatch.delenv("DVC_STAGE")
        assert load_plugin(name, "rewards") == "edited during the run"
    assert plugin_hashes(settings) != copied


def test_only_what_params_name_is_copied(write: Write) -> None:
    write("part = 1")
    folders = {"rewards": Path("data/rewards"), "formats": Path("data/formats")}
    copy_plugins({"extra": ["plugins/own.py:part"]}, folders)
    copy_plugins({"format": "plugins/own.py:part"}, folders)
    copied = {path.as_posix() for path in Path("data").rglob("*")}
    files = {"rewards/names.txt", "formats/names.txt", "formats/own.py"}
    assert copied == {"data/rewards", "data/formats", *(f"data/{file}" for file in files)}


def test_the_file_is_part_of_a_run_s_identity_and_provenance(write: Write) -> None:
    settings = {"reward": {"extra": [write("part = 1")]}}
    before = fingerprint(settings, inputs={})
    write_provenance(Path("provenance.json"), settings=settings, inputs={})
    assert list(read_json(Path("provenance.json"))["plugins"]) == ["plugins/own.py:part"]
    write("part = 2")
    assert fingerprint(settings, inputs={}) != before
    assert "plugins" not in plugin_hashes({"reward": {"extra": ["overlong"]}})


@pytest.mark.parametrize(
    ("source", "place", "said"),
    [
        ("part = (", "own.py:1", "never closed"),
        ("x = 1\npart = 1 / 0", "own.py:2", "ZeroDivision"),
        ("other = 1", "own.py", "`part`; it has other"),
        ("from plugins.helper import part", "own.py:1", "one file"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_named(
    write: Write, source: str, place: str, said: str
) -> None:
    with pytest.raises(UserError) as raised:
        load_plugin(write(source), "rewards")
    assert place in raised.value.message
    assert said in raised.value.message


def test_a_file_may_hold_a_dataclass(write: Write) -> None:
    source = "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\n"
    assert load_plugin(write(f"{source}class part:\n    x: int = 3"), "formats")().x == 3


def test_check_is_known_by_its_name_wherever_dvc_runs_it_from(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write("part = 'the file'")
    monkeypatch.setenv("DVC_STAGE", "../dvc.yaml:check")
    assert load_plugin(name, "rewards") == "the file"


def test_a_missing_file_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"plugins/own\.py is missing"):
        load_plugin("plugins/own.py:part", "rewards")
    monkeypatch.setenv("DVC_STAGE", "grpo")
    with pytest.raises(UserError, match="dvc repro"):
        load_plugin("plugins/own.py:part", "rewards")


def test_a_reward_scores_rollouts(write: Write) -> None:
    name = write("def part(rollout):\n    return len(rollout.completion) + int(rollout.reference)")
    assert scores(name, "", "abc") == [5, 8]


def test_a_reward_may_have_trl_s_signature(write: Write) -> None:
    name = write(
        "def part(prompts, completions, reference, **columns):\n"
        "    return [float(r in c[0]['content']) if c[0]['content'] else None\n"
        "            for c, r in zip(completions, reference)]"
    )
    assert scores(name, "5", "7", "") == [1, 0, 0]


def test_a_reward_that_tells_its_bounds_is_watched_by_them(write: Write) -> None:
    bounded = write(
        "from lib.verifier.rewards import BoundedReward\n"
        "part = BoundedReward(lambda rollout: 0.5, (0.0, 2.0))"
    )
    assert stack_range([bounded], [0.5]) == (0, 1)
    assert scores(bounded, "a") == [0.5]
    free = write("def part(rollout): return 1.0")
    assert stack_range([free], [0.5]) == (float("-inf"), float("inf"))
    assert stack_range([free], [0.0]) == (0, 0)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("part = 3", "expected a function"),
        ("def part(rollout): return 'high'", "'high'"),
        ("def part(rollout): return float('nan')", "gave nan for '2 + 3 = 5<"),
        ("def part(rollout): return rollout.answer", "AttributeError"),
        ("def part(completions, **columns): return [1.0]", "1 values for 5"),
        ("def part(completions, reference): return [1.0] * len(completions)", "TypeError"),
        (BOUNDED.format("float('nan')"), "gave nan"),
        (BOUNDED.format("rollout.nothing"), "AttributeError"),
        ("def part(completions, **columns): return ['a'] * len(completions)", "'a'"),
    ],
)
def test_check_says_which_reward_failed_and_on_what(write: Write, source: str, said: str) -> None:
    (fault,) = faults({"reward": {"extra": [write(source)]}}, extra_weights=(1.0,))
    assert fault.startswith("plugins/own.py:part: ")
    assert said in fault


def test_two_rewards_of_one_name_would_share_a_column(write: Write) -> None:
    write("def answer_shaped(rollout): return 1.0\ndef overlong(rollout): return 0.0")
    extra = ["overlong", "plugins/own.py:overlong"]
    (fault,) = faults({"reward": {"extra": extra}}, extra_weights=(1.0, 1.0))
    assert "`overlong`" in fault


def test_a_format_is_registered_under_its_plugin_s_name(write: Write) -> None:
    name = write(
        "from lib.prompts.tagged import TaggedFormat\n"
        "part = TaggedFormat(name='x', working=('<w>', '</w>'), answer=('<a>', '</a>'),\n"
        "                    opened_by_prompt=False)"
    )
    own = prompt_format(name, layout="chatml")
    assert own.name == name
    assert own.parse(own.target(solution="2 + 3 = 5", reference="5")).answer == "5"
    save_format(Path(), {"name": name, "tags": (), "layout": "plain"})
    assert saved_format(Path()) == prompt_format(name)
    write(Path("plugins/own.py").read_text() + "# edited")
    with pytest.raises(UserError, match="another version"):
        saved_format(Path())
    with pytest.raises(UserError, match="expected a TaggedFormat"):
        prompt_format(write("part = 'xml'"))


def test_an_adapter_turns_rows_into_ones_that_the_column_table_reads(write: Write) -> None:
    name = write("def part(row): return {'problem': row['q'], 'answer': row['a'][0]}")
    raw = Path("data/raw")
    raw.mkdir(parents=True)
    (raw / "rows.jsonl").write_text('{"q": "2 + 3?", "a": ["5"]}\n{"q": "3 + 3?"}\n')
    good, bad = (problem for _, problem in read_rows(raw / "rows.jsonl", adapter=name, raw=raw))
    assert not isinstance(good, RowFault)
    assert (good.problem, good.reference) == ("2 + 3?", "5")
    assert isinstance(bad, RowFault)
    assert "KeyError: 'a'" in bad.detail
    source = {"path": "data/raw/rows.jsonl", "adapter": name, "columns": {}, "limit": "all"}
    grpo = {"sources": [{"weight": "all", "source": source}]}
    assert faults({"prepare": {"grpo": grpo}}) == []
    (raw / "rows.jsonl").write_text('{"q": "3 + 3?"}\n')
    (fault,) = faults({"prepare": {"grpo": grpo}})
    assert "rows.jsonl:1" in fault


def test_a_loss_and_an_advantage_take_the_place_of_ours(write: Write) -> None:
    reinforce = objective(write("def part(new, old, advantages, mask): return -advantages * new"))
    log_probs = torch.tensor([[-1.0, -2.0], [-0.5, -9.0]], requires_grad=True)
    mask = torch.tensor([[1, 1], [1, 0]])
    loss = policy_loss(log_probs, torch.tensor([1.0, -2.0]), mask, loss_type=reinforce)
    assert loss.loss.item() == pytest.approx((1 + 2 - 2 * 0.5) / 3)
    loss.loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[pytest.approx(-1 / 3)] * 2, [pytest.approx(2 / 3), 0]]
    rank = objective(write("def part(rewards): return rewards.argsort(-1).float()"))
    assert group_advantages(torch.tensor([[3.0, 1.0]]), baseline=rank).tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("trial", "source", "said"),
    [
        (try_loss, "def part(new, old, advantages, mask): return new.sum()", "gave [] for"),
        (try_loss, "def part(new, old, advantages, mask): return new.detach()", "no gradient"),
        (try_loss, "def part(new, old, advantages, mask): return new.log()", "nan"),
        (try_loss, "def part(new): return new", "TypeError"),
        (try_groups_of_4, "def part(rewards): return rewards.mean(-1)", "shape [2, 4]"),
        (try_groups_of_4, "def part(rewards): return rewards / 0", "inf"),
        (try_groups_of_4, "part = None", "expected a function"),
    ],
)
def test_check_tries_objectives_on_shapes_and_gradients(
    write: Write, trial: Callable[[str], None], source: str, said: str
) -> None:
    with pytest.raises(UserError) as raised:
        trial(write(source))
    assert said in raised.value.message


def test_check_tries_an_advantage_on_groups_of_the_runs_size(write: Write) -> None:
    name = write("def part(rewards): return rewards - rewards.topk(8).values.mean(-1, True)")
    assert faults({"grpo": {"advantage": name, "group_size": 8}}) == []
    (fault,) = faults({"grpo": {"advantage": name, "group_size": 4}})
    assert fault.startswith(name)


TAGGED = """
from lib.prompts.tagged import TaggedFormat
class Own(TaggedFormat):
    {}
part = Own(name='own', working={}, answer={}, opened_by_prompt=False)
"""


@pytest.mark.parametrize(
    ("body", "working", "answer", "said"),
    [
        ("pass", ("", "</w>"), ("<a>", "</a>"), "four different tags"),
        ("pass", ("<w>", "</w>"), ("<w>", "</w>"), "four different tags"),
        ("def parse(self, completion): pass", ("<w>", "</w>"), ("<a>", "</a>"), "gave None"),
        (
            "def parse(self, text): return 1 / len(text)",
            ("<w>", "</w>"),
            ("<a>", "</a>"),
            "ZeroDivisionError",
        ),
        (
            "def parse(self, text): return super().parse(text[1:])",
            ("<w>", "</w>"),
            ("<a>", "</a>"),
            "answer '5' in the required form",
        ),
        ("def target(self, **_): return 1 / 0", ("<w>", "</w>"), ("<a>", "</a>"), "ZeroDivision"),
        ("pass", ("<w>", "</w>"), ("<a>", "</a>"), ""),
    ],
)
def test_check_tries_a_format_on_what_it_teaches(
    write: Write, body: str, working: tuple[str, str], answer: tuple[str, str], said: str
) -> None:
    name = write(TAGGED.format(body, working, answer))
    found = faults({"prompt": {"format": name}})
    assert len(found) == bool(said)
    assert all(fault.startswith(name) and said in fault for fault in found)


def faults(overlay: dict[str, Any], extra_weights: tuple[float, ...] = ()) -> list[str]:
    """What `check` says of the default's params with `overlay`."""
    content = merged(read_yaml(ROOT / "params.yaml"), overlay)
    content["reward"]["weights"] += extra_weights
    return list(input_problems(parse_params(content, origin="params.yaml")))


def merged(content: Any, overlay: Any) -> Any:
    if not isinstance(overlay, dict):
        return overlay
    return {**content, **{key: merged(content[key], value) for key, value in overlay.items()}}
