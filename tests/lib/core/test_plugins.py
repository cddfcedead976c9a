"""Plugins: names, files, and the error of a plugin that breaks its contract."""

import hashlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from lib.artifacts import fingerprint, read_json, write_provenance
from lib.core.errors import UserError
from lib.core.plugins import is_plugin, load_plugin
from lib.objectives.advantages import group_advantages
from lib.objectives.own import objective, try_advantage, try_loss
from lib.planning.inputs import input_problems
from lib.problems.rows import RowFault
from lib.problems.sources import read_rows
from lib.prompts import prompt_format, save_prompt, saved_format
from lib.rewards.functions import stack_range
from lib.rewards.grading import Grading
from tests.lib.objectives.losses import loss_of
from tests.lib.params.changes import Changes, accepted
from tests.lib.problems.conftest import path_source

Write = Callable[..., str]

try_groups_of_4 = partial(try_advantage, group_size=4, num_rewards=2)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write own.py of a role in an empty working directory; return the name of its `part`."""
    monkeypatch.chdir(tmp_path)

    def written(source, role="rewards"):
        file = Path("plugins", role, "own.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, encoding="utf-8")
        load_plugin.cache_clear()
        return f"{file}:part"

    yield written
    load_plugin.cache_clear()


def scores(name: str, *completions: str) -> list[float]:
    (reward,) = Grading([name], prompt_format=prompt_format("xml")).rewards
    return reward(
        prompts=[[]] * len(completions),
        completions=[[{"role": "assistant", "content": text}] for text in completions],
        reference=["5"] * len(completions),
    )


@pytest.mark.parametrize(
    "name",
    ["plugins/rewards/a.py", "plugins/../a.py:f", "plugins/a.py:f", "lib/rewards/a.py:f", None],
)
def test_a_plugin_is_a_name_in_a_file_of_a_role(name):
    assert not is_plugin(name)
    assert is_plugin("plugins/rewards/a.py:f", role="rewards")


@pytest.mark.parametrize(
    ("section", "key"), [("prompt", "format"), ("grpo", "loss"), ("grpo", "advantage")]
)
def test_a_plugin_of_another_role_is_refused(section, key):
    """Otherwise a stage would run a file outside its dependencies."""
    with pytest.raises(
        UserError, match=rf"{section}\.{key}: .*plugins/(formats\|tasks|objectives)/"
    ):
        faults({f"{section}.{key}": "plugins/rewards/examples.py:brevity"})


def test_a_plugins_file_is_in_identity_and_provenance(write):
    settings = {"reward": {"extra": [write("part = 1"), "overlong"], "stack": "tiny"}}
    before = fingerprint(settings, inputs={})
    write_provenance(Path("provenance.json"), settings=settings, inputs={})
    recorded = read_json(Path("provenance.json"))["plugins"]
    assert recorded == {"plugins/rewards/own.py:part": hashlib.sha256(b"part = 1").hexdigest()[:16]}
    write("part = 2")
    assert fingerprint(settings, inputs={}) != before


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("part = (", r"own\.py:1.*never closed"),
        ("x = 1\npart = 1 / 0", r"own\.py:2.*ZeroDivisionError"),
        ("other = 1", r"own\.py.*it has other"),
        (None, r"plugins/rewards/own\.py is missing"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_named(write, source, error):
    with pytest.raises(UserError, match=error):
        load_plugin(write(source) if source else "plugins/rewards/own.py:part")


def test_a_reward_scores_rollouts(write):
    name = write("def part(rollout):\n    return len(rollout.completion) + int(rollout.reference)")
    assert scores(name, "", "abc") == [5, 8]


def test_a_reward_may_have_trls_signature(write):
    name = write(
        "def part(prompts, completions, reference, **columns):\n"
        "    return [float(r in c[0]['content']) if c[0]['content'] else None\n"
        "            for c, r in zip(completions, reference)]"
    )
    assert scores(name, "5", "7", "") == [1, 0, 0]


def test_a_rewards_bounds_are_its_range(write):
    bounded = write(
        "from lib.rewards.rollout import BoundedReward\n"
        "part = BoundedReward(lambda rollout: 0.5, (0.0, 2.0))"
    )
    assert stack_range([bounded], [0.5]) == (0, 1)
    free = write("def part(rollout): return 1.0")
    assert stack_range([free], [0.5]) == (float("-inf"), float("inf"))
    assert stack_range([free], [0.0]) == (0, 0)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("part = 3", "expected a function"),
        ("def part(rollout): return 'high'", "'high'"),
        ("def part(rollout): return float('nan')", "gave nan for '2 + 3 = 5<"),
        ("def part(completions, **columns): return [1.0]", "1 values for 5"),
        ("def part(completions, reference): return [1.0] * len(completions)", "TypeError"),
    ],
)
def test_check_names_the_reward_that_failed(write, source, words):
    (fault,) = faults({"reward.extra": [write(source)], "reward.weights": [1.0] * 3})
    assert fault.startswith("plugins/rewards/own.py:part: ")
    assert words in fault


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import sys\ndef part(rollout): sys.exit(0)", ":2: SystemExit: 0, called with 'a'"),
        ("import sys\nsys.exit(0)", "own.py:2: SystemExit: 0"),
        ("def part(rollout): return -(10**9000)", "OverflowError"),
        ("def part(rollout): raise ValueError('two\\nlines')", "ValueError: two lines, called"),
    ],
)
def test_whatever_a_reward_does_is_one_line_that_names_it(write, source, fault):
    error = rf"^plugins/rewards/own\.py:part: .*{re.escape(fault)}.*\Z"
    with pytest.raises(UserError, match=error):  # a dot is no line break
        scores(write(source), "a")


def test_a_format_has_its_plugins_name(write):
    name = write(
        "from lib.prompts.formats import TaggedFormat\n"
        "part = TaggedFormat(name='x', working=('<w>', '</w>'), answer=('<a>', '</a>'),\n"
        "                    opened_by_prompt=False)",
        "formats",
    )
    own = prompt_format(name, layout="chatml")
    assert own.name == name
    assert own.parse(own.target(solution="2 + 3 = 5", reference="5")).answer == "5"
    save_prompt(Path(), system="", rendering={"name": name, "tags": (), "layout": "plain"})
    assert saved_format(Path()) == prompt_format(name)
    write(Path("plugins/formats/own.py").read_text() + "# edited", "formats")
    with pytest.raises(UserError, match="another version"):
        saved_format(Path())
    with pytest.raises(UserError, match="expected a TaggedFormat"):
        prompt_format(write("part = 'xml'", "formats"))


def test_an_adapter_turns_rows_into_problems(write):
    source = "def part(row): return {'problem': row['q'], 'answer': row['a'][0]}"
    name = write(source, "adapters")
    raw = Path("data/raw")
    raw.mkdir(parents=True)
    (raw / "rows.jsonl").write_text('{"q": "2 + 3?", "a": ["5"]}\n{"q": "3 + 3?"}\n')
    good, bad = (problem for _, problem in read_rows(raw / "rows.jsonl", adapter=name, raw=raw))
    assert not isinstance(good, RowFault)
    assert (good.problem, good.reference) == ("2 + 3?", "5")
    assert isinstance(bad, RowFault)
    assert "KeyError: 'a'" in bad.detail
    sources = [{"weight": "all", "source": path_source("rows") | {"adapter": name}}]
    (raw / "rows.jsonl").write_text('{"q": "3 + 3?"}\n')
    (fault,) = faults({"prepare.grpo.sources": sources})
    assert "rows.jsonl:1" in fault


def test_a_loss_and_an_advantage_take_the_place_of_ours(write):
    source = "def part(new, old, advantages, mask): return -advantages * new"
    reinforce = objective(write(source, "objectives"))
    log_probs = torch.tensor([[-1.0, -2.0], [-0.5, -9.0]], requires_grad=True)
    mask = torch.tensor([[1, 1], [1, 0]])
    loss = loss_of(log_probs, torch.tensor([1.0, -2.0]), mask, loss=reinforce)
    assert loss.loss.item() == pytest.approx((1 + 2 - 2 * 0.5) / 3)
    loss.loss.backward()
    assert log_probs.grad.tolist() == [[pytest.approx(-1 / 3)] * 2, [pytest.approx(2 / 3), 0]]
    source = "def part(rewards): return rewards.argsort(-1).float()"
    rank = objective(write(source, "objectives"))
    rewards = torch.tensor([[3.0, 1.0]])
    assert group_advantages(rewards, baseline=rank).tolist() == [[1, 0]]
    verdict = objective(write("def part(rewards, right): return right", "objectives"))
    assert group_advantages(rewards, baseline=verdict, right=rewards > 2).dtype == torch.float32


@pytest.mark.parametrize(
    ("trial", "source", "words"),
    [
        (try_loss, "def part(new, old, advantages, mask): return new.sum()", "gave [] for"),
        (try_loss, "def part(new, old, advantages, mask): return new.detach()", "no gradient"),
        (try_loss, "def part(new, old, advantages, mask): return new.log()", "nan"),
        (
            try_loss,
            "def part(new, old, advantages, mask): return (new - old).abs().sqrt()",
            "gave the gradient",
        ),
        (try_loss, "def part(new): return new", "TypeError"),
        (try_groups_of_4, "def part(rewards): return rewards.mean(-1)", "shape [2, 4]"),
        (try_groups_of_4, "def part(rewards): return rewards / 0", "inf"),
        (try_groups_of_4, "part = None", "expected a function"),
    ],
)
def test_check_tries_objectives_shapes_and_gradients(write, trial, source, words):
    with pytest.raises(UserError, match=re.escape(words)):
        trial(write(source, "objectives"))


def test_check_tries_an_advantage_on_groups_of_the_runs_size(write):
    name = write(
        "def part(rewards): return rewards - rewards.topk(8).values.mean(-1, True)", "objectives"
    )
    assert faults({"grpo.advantage": name, "grpo.group_size": 8}) == []
    (fault,) = faults({"grpo.advantage": name, "grpo.group_size": 4})
    assert fault.startswith(name)


TAGGED = """
from lib.prompts.formats import TaggedFormat
class Own(TaggedFormat):
    {}
part = Own(name='own', working=('{}', '</w>'), answer=('<a>', '</a>'), opened_by_prompt=False)
"""
CUT = "def parse(self, text): return super().parse(text[1:])"


@pytest.mark.parametrize(
    ("body", "tag", "words"),
    [
        ("pass", "", "four different tags"),
        ("def parse(self, completion): pass", "<w>", "gave None"),
        ("def parse(self, text): return 1 / len(text)", "<w>", "ZeroDivisionError"),
        (CUT, "<w>", "answer '5' in the required form"),
        ("def target(self, **_): return 1 / 0", "<w>", "ZeroDivision"),
        ("pass", "<w>", ""),
    ],
)
def test_check_tries_a_format_on_what_it_teaches(write, body, tag, words):
    name = write(TAGGED.format(body, tag), "formats")
    reported = faults({"prompt.format": name})
    assert len(reported) == bool(words)
    assert all(fault.startswith(name) and words in fault for fault in reported)


def faults(changes: Changes) -> list[str]:
    """List the faults that `check` reports for the default params with other values."""
    return list(input_problems(accepted(changes)))


def test_a_file_may_hold_a_dataclass(write):
    source = "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\n"
    assert load_plugin(write(f"{source}class part:\n    x: int = 3"))().x == 3


def test_a_pool_that_idles_is_no_thread_of_the_plugins(write):
    pool = "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)\n"
    name = write(f"{pool}def part(rollout): return pool.submit(len, rollout.completion).result()")
    assert scores(name, "four") == [4.0]
