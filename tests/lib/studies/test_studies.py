"""Studies: their definitions, experiments, statistics and pages."""

import dataclasses
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import nullcontext
from typing import Any

import pytest
from click.testing import CliRunner
from fsspec.implementations.dirfs import DirFileSystem

from commands.study import main as study_stage
from lib.artifacts import read_json, write_json, write_metrics
from lib.artifacts.completions import GradedCompletion
from lib.artifacts.problems import UNSEEN_EQUATIONS
from lib.core.errors import UserError
from lib.params.load import read_yaml
from lib.params.schema import by_dotted_key
from lib.planning.inputs import input_problems
from lib.studies import experiments
from lib.studies.definition import (
    STUDIES,
    VARIANT,
    Study,
    Variant,
    hydra,
    load_study,
    study_file,
    with_params,
)
from lib.studies.experiments import (
    Outcome,
    _identity,
    _stored,
    checkpoint_path,
    experiments_of,
    measurements,
    run_study,
)
from lib.studies.measures import Scores, problem_scores
from lib.studies.pages import (
    END,
    START,
    studies_page,
    write_pages,
)
from lib.studies.results import claim_verdicts, study_metrics
from tests.conftest import ROOT

SEEDS = (0, 1, 2)
RIGHT = {"sft": [10, 12, 8], "grpo": [20, 24, 16], "control": [20, 24, 16]}
"""Right answers of 40 by variant, one for each seed."""


def study(**changes: Any) -> Study:
    content = {
        "claim": "More is more.",
        "source": "",
        "benchmarks": ("held_out",),
        "seeds": SEEDS,
        "variants": {
            "sft": {"checkpoint": "sft"},
            "grpo": {"checkpoint": "grpo"},
            "control": {"checkpoint": "sft", "params": {"sft.num_epochs": 5}},
        },
        "comparisons": (
            {"before": "sft", "after": "grpo", "expect": "better"},
            {"before": "grpo", "after": "control", "expect": "no difference"},
        ),
    }
    return Study.model_validate({**content, **changes})


def outcome_of(
    right: dict[str, list[int]] = RIGHT,
    *,
    curves: dict[str, dict[str, float]] | None = None,
    training: dict[str, dict[str, float]] | None = None,
) -> Outcome:
    """Build an outcome from the number of right answers by variant and seed.

    The first of 40 problems are right; on `harder`, all. `curves` has validation accuracies by
    variant and step, `training` measures of the training by variant.
    """
    scores: dict[tuple[str, int], Scores] = {
        (variant, seed): {
            "held_out": {"greedy": {str(number): float(number < count) for number in range(40)}},
            "harder": {"greedy": {"0": 1.0}},
            "": {key: {"all": value} for key, value in (training or {}).get(variant, {}).items()},
        }
        for variant, counts in right.items()
        for seed, count in zip(SEEDS, counts, strict=True)
    }
    validation = {key: (curves or {}).get(key[0], {}) for key in scores}
    return Outcome(scores=scores, validation=validation, hours=1.0)


def metrics_of(outcome: Outcome | None = None, definition: Study | None = None) -> dict[str, Any]:
    return study_metrics(
        definition or study(), outcome or outcome_of(), num_validated=dict.fromkeys(RIGHT, 20)
    )


TAUGHT = {
    "distilled": {"checkpoint": "grpo", "params": {"grpo.teacher": "variant:control"}},
    "again": {"checkpoint": "grpo", "params": {"model.name": "variant:distilled"}},
}

UNSAMPLED = "sft: {checkpoint: sft, params: {evaluate.num_samples: 0}}"

COMMITTED = [
    pytest.param(variant, id=f"{path.stem} {name}")
    for path in sorted((ROOT / STUDIES).glob("*.yaml"))
    for name, variant in load_study(path).variants.items()
]


@pytest.mark.parametrize("variant", COMMITTED)
def test_check_lets_every_committed_variant_pass(variant):
    params = with_params(read_yaml(ROOT / "params.yaml"), variant, origin="")
    # Models that `make fetch` or the study's file says how to make.
    own = ("make fetch", "model.name=data/hub/", f"model.name={VARIANT}")
    assert all(any(each in problem for each in own) for problem in input_problems(params))
    expected = by_dotted_key(variant.params)
    assert {key: params.flat()[key] for key in expected} == expected


def test_variants_with_the_same_params_are_one_run_per_seed():
    runs = experiments_of("s", study())
    assert len(runs) == 2 * len(SEEDS)
    both = [each for each in runs if each.checkpoints == {"sft": "sft", "grpo": "grpo"}]
    assert [each.seed for each in both] == list(SEEDS)
    assert both[0].targets == ["grade@grpo", "grade@sft"]
    assert len({each.name for each in runs}) == len(runs)


def test_a_variants_values_are_set_after_its_presets():
    """Sorted, `grpo` as a whole would come before one value of the preset, which would then win."""
    params = {"grpo.max_steps": 7, "grpo": {"max_steps": 3}}
    variant = {"checkpoint": "sft", "params": params}
    variants = dict.fromkeys(("sft", "grpo", "control"), variant)
    (first, *_) = experiments_of("s", study(variants=variants))
    assert [*first.params] == [*params]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"seeds": (0, 1, 1)}, "seeds"),
        (
            {
                "variants": {
                    "a": {"checkpoint": "sft"},
                    "b": {"checkpoint": "sft", "params": {"grpo": {"teacher": "variant:a"}}},
                }
            },
            "dotted key",
        ),
        ({"variants": {"b": TAUGHT["distilled"], "control": {"checkpoint": "sft"}}}, "above it"),
        ({"comparisons": ({"before": "sft", "after": "gpro", "expect": "better"},)}, "`gpro`"),
        ({"variants": {"a": {"checkpoint": "last"}, "b": {"checkpoint": "sft"}}}, "checkpoint"),
        ({"variants": {"a-b": {"checkpoint": "grpo"}, "b": {"checkpoint": "sft"}}}, "a-b"),
    ],
)
def test_a_study_without_a_sound_comparison_is_refused(changes, key):
    with pytest.raises(ValueError, match=key):
        study(**changes)


@pytest.mark.parametrize(
    ("checkpoint", "params", "key"),
    [
        ("grpo", {"grpo.max_step": 1}, r"grpo\.max_step: unknown"),
        ("grpo", {"grpo.group_size": 1}, "group_size"),
        ("grpo", {"seed": 3}, "`seeds`"),
        ("grpo", {"seed.x": 3}, r"`seed\.x`"),
        ("dpo", {}, r"evaluate\.checkpoints"),
        ("sft", {"reward.extra": ["overlong"], "reward.weights": [0.0, 1.0, 1.0]}, ""),
    ],
)
def test_a_variant_may_change_only_what_params_have(checkpoint, params, key):
    content, before = read_yaml(ROOT / "params.yaml"), read_yaml(ROOT / "params.yaml")
    with pytest.raises(UserError, match=key) if key else nullcontext():
        with_params(content, Variant(checkpoint=checkpoint, params=params), origin="x.yaml")
    assert content == before


def test_a_preset_changes_what_differs_but_the_seed(tmp_path, monkeypatch):
    """Its levels are a mapping where params have a list."""
    params = (ROOT / "params.yaml").read_text("utf-8")
    (tmp_path / "params.yaml").write_text(re.sub("^seed: 0", "seed: 1", params, flags=re.M))
    weights = {"sft": [1.0, 2.0], "grpo": [0.0, 1.0]}
    preset = {"prepare": {"synthetic": {"level_weights": weights}}, "grpo": {"max_steps": 7}}
    write_json(tmp_path / "mine.yaml", preset)  # JSON is YAML
    text = (ROOT / STUDIES / "seeds.yaml").read_text("utf-8")
    (tmp_path / "study.yaml").write_text(f"preset: {tmp_path}/mine.yaml\n{text}")
    monkeypatch.chdir(tmp_path)
    (first, *_) = load_study(tmp_path / "study.yaml").variants.values()
    assert first.params == {"prepare.synthetic.level_weights": weights, "grpo.max_steps": 7}


def test_scores_are_kept_for_the_same_code_params_and_teacher(tmp_path):
    variants = {**study().variants, **TAUGHT}
    *_, again = experiments_of("s", study(variants=variants))
    write_json(tmp_path / f"{again.name}.json", {**_identity(again, "code"), "scores": {}})
    assert _stored(again, tmp_path, "code")
    assert not _stored(again, tmp_path, "other code")
    for changes in ({"params": {"grpo.epsilon": 0.1}}, {"checkpoints": {"sft": "base"}}):
        assert not _stored(dataclasses.replace(again, **changes), tmp_path, "code")
    control = Variant(checkpoint="sft", params={"sft.num_epochs": 7})
    *_, other = experiments_of("s", study(variants={**variants, "control": control}))
    assert other.params == again.params and not _stored(other, tmp_path, "code")


@pytest.mark.parametrize(
    ("name", "line", "changed", "fault"),
    [
        ("longer", "benchmarks: [harder]", "benchmarks: [hard]", ": benchmarks: no `hard`"),
        ("longer", "measure: pass@8", "measure: pass@4", ": measure: no `pass@4`"),
        # GRPO's training logs no accuracy.
        ("sanity", "grpo.max_steps: 60", "grpo.max_steps: 0", ": measure: no `training`"),
        ("sanity", "grpo.max_steps: 60", "grpo.trainer: trl", ": measure: no `training`"),
        # `harder` with 4 samples of its own.
        (
            "longer",
            "evaluate.max_new_tokens: 96",
            "evaluate.overrides: [{benchmark: harder, greedy: true, num_samples: 4, "
            "temperature: 1.0, top_p: 1.0, max_new_tokens: 96}]",
            ": measure: no `pass@8`",
        ),
        (
            "longer",
            "seeds: [0, 1, 2, 3, 4]",
            "seeds: [0, 1]",
            " has 1 problem:\n  seeds: needs at least 3",
        ),
        ("noise", "sft: {checkpoint: sft}", UNSAMPLED, ""),
        (
            "noise",
            "sft: {checkpoint: sft}\n  exact: {checkpoint: grpo, params: &exact {",
            f"{UNSAMPLED}\n  exact: {{checkpoint: grpo, params: &exact {{evaluate.greedy: false, ",
            r": variants: all need greedy .* or all need",
        ),
    ],
)
def test_a_fault_of_a_study_names_its_field(name, line, changed, fault, tmp_path, monkeypatch):
    """A set or measure that no run gives is a fault."""
    text = (ROOT / STUDIES / f"{name}.yaml").read_text("utf-8")
    assert line in text
    (tmp_path / "mine.yaml").write_text(text.replace(line, changed))
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"mine\.yaml{fault}") if fault else nullcontext():
        load_study(tmp_path / "mine.yaml")


@pytest.fixture
def runs_as(monkeypatch):
    """Put a function in the place of an experiment's run."""
    monkeypatch.setattr("lib.studies.experiments._lock_hash", lambda: "code")
    return lambda run: monkeypatch.setattr("lib.studies.experiments._run", run)


def test_a_seed_s_other_experiments_run_side_by_side(tmp_path, monkeypatch, runs_as):
    first_ended = set()
    # Each of the others waits for a second one: alone, it would fail.
    pair = threading.Barrier(2, timeout=20)

    def run(experiment, scratch, state, processes):
        if experiment.name.startswith("s-sft-grpo-"):
            time.sleep(0.05)
            first_ended.add(experiment.seed)
        else:
            assert experiment.seed in first_ended
            pair.wait()
        return 60.0

    runs_as(run)
    # No experiment has a file before the study, and each has one after it.
    numbers = {"scores": defaultdict(dict), "validation": defaultdict(dict), "seconds": 60.0}
    reads = iter([{}] * 9 + [numbers] * 9)
    monkeypatch.setattr("lib.studies.experiments._stored", lambda *_: next(reads))
    variants = {**study().variants, "x": Variant(checkpoint="sft", params={"sft.num_epochs": 6})}
    outcome = run_study("s", study(variants=variants), scratch=tmp_path, jobs=2, log=print)
    assert outcome.hours == pytest.approx(9 / 60)


def test_a_variant_runs_after_those_whose_checkpoints_it_names(tmp_path, runs_as):
    ended = []

    def run(experiment, scratch, state, processes):
        if experiment.name == "s-again-2":
            raise UserError("the last one")
        for _, other in experiment.inputs.values():
            assert other.name in ended and other.seed == experiment.seed
        ended.append(experiment.name)
        return 60.0

    definition = study(variants={**study().variants, **TAUGHT})
    assert [each.wave for each in experiments_of("s", definition)[:4]] == [0, 0, 1, 2]
    runs_as(run)
    with pytest.raises(UserError, match="the last one\n11 of 12"):
        run_study("s", definition, scratch=tmp_path, jobs=1, log=print)


def test_a_study_is_a_path_or_a_name(tmp_path):
    own = tmp_path / "mine.yaml"
    own.touch()
    assert study_file(str(own)) == own
    assert study_file("seeds") == STUDIES / "seeds.yaml"
    for name in ("sedes", ""):
        with pytest.raises(UserError, match=rf"{name}.*curriculum, distill"):
            study_file(name)


def test_a_checkpoint_is_copied_to_a_path_of_its_hash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (control,) = (
        each for each in experiments_of("s", study())[:2] if "control" in each.checkpoints
    )
    (tmp_path / "run/data/models/sft/deep").mkdir(parents=True)
    (tmp_path / "run/data/models/sft/deep/weights").write_text("control")
    lock = {"stages": {"sft": {"outs": [{"path": "data/models/sft", "md5": "0af.dir"}]}}}
    write_json(tmp_path / "run/dvc.lock", lock)  # JSON is YAML
    monkeypatch.setattr(experiments, "DVCFileSystem", lambda rev: DirFileSystem(tmp_path / "run"))
    for _ in range(2):
        assert checkpoint_path("control", control) == "data/hub/studies/0af"
    (only,) = (tmp_path / "data/hub/studies").iterdir()
    assert (only / "deep/weights").read_text() == "control"
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(UserError, match=rf"data/models/sft of .* {control.name} is gone"):
        checkpoint_path("control", control)


FAKE_DVC = """
import os, sys, time
name = sys.argv[sys.argv.index("--name") + 1] if "--name" in sys.argv else sys.exit()
try:
    print(f"Running stage 'sft':\\n> python\\nsft step=1/2 loss=1", file=sys.stderr)
    time.sleep(1 if name == os.environ["FAILS"] else 60)
except KeyboardInterrupt:
    print("written whole", file=open(name, "w"))
sys.exit(1)
"""

RUN_STUDY = """
import os, sys
import click
from pathlib import Path
from lib.studies import experiments
from lib.studies.definition import Study
experiments._lock_hash, experiments.DVC = (lambda: "code"), [sys.executable, "fake.py"]
study = Study.model_validate_json(os.environ["DEFINITION"])
experiments.run_study("s", study, scratch=Path(), jobs=2, log=click.echo)
"""


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("fails", "fault", "interrupted"),
    [
        ("", "study: interrupted", {"s-sft-grpo-0", "s-sft-grpo-1"}),
        ("s-sft-grpo-1", "experiment s-sft-grpo-1 failed", {"s-sft-grpo-0"}),
    ],
)
def test_a_stopped_study_ends_its_runs_and_starts_no_more(fails, fault, interrupted, tmp_path):
    (tmp_path / "fake.py").write_text(FAKE_DVC)
    own = {"PYTHONPATH": str(ROOT), "FAILS": fails, "DEFINITION": study().model_dump_json()}
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", RUN_STUDY],
        cwd=tmp_path,
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = {process.stdout.readline().strip() for _ in range(4)}
    assert lines == {
        f"s-sft-grpo-{seed}: {line}"
        for seed in (0, 1)
        for line in ("Running stage 'sft':", "sft step=1/2 loss=1")
    }
    if not fails:
        process.send_signal(signal.SIGINT)
    out, error = process.communicate()
    assert not out and fault in error
    assert "0 of 6 experiments are done; `make study STUDY=s` runs the others" in error
    assert {path.name for path in tmp_path.glob("s-*")} == interrupted


@pytest.mark.parametrize(
    "value",
    [
        0.5,
        "plugins/a.py:f",
        "two words",
        'it\'s "q"',
        "a\nb",
        '\\d \\" \\',
        "true",
        "1e-3",
        "",
        [{"weight": 1, "source": {"path": "a/b"}}, False, None],
    ],
)
def test_values_are_written_as_dvc_takes_them(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert OverridesParser.create().parse_override(f"a.b={hydra(value)}").value() == value


def test_scores_are_per_problem_and_mode():
    rows = [
        completion("greedy", "p", answer_ok=True),
        *(completion("sampled", "p", answer_ok=number == 0) for number in range(16)),
        *(completion("sampled", "q", answer_ok=text != "d", text=text) for text in "aabd"),
    ]
    assert problem_scores(rows) == {
        "held_out": {
            "greedy": {"p": 1.0},
            "pass@1": {"p": 1 / 16, "q": 0.75},
            "pass@4": {"q": 1.0},
            "pass@8": {"p": pytest.approx(0.5)},
            "pass@16": {"p": 1.0},
            "distinct": {"q": pytest.approx(2 / 3)},  # one of three pairs has equal texts
        }
    }
    # Unseen problems have measures of their own, unless all problems are unseen.
    new = [dataclasses.replace(row, tags=(UNSEEN_EQUATIONS,)) for row in rows]
    both = problem_scores(
        [row if row.problem_id == "p" else tagged for row, tagged in zip(rows, new, strict=True)]
    )["held_out"]
    assert both["unseen pass@1"] == {"q": 0.75} and "unseen greedy" not in both
    assert problem_scores(new) == problem_scores(rows)


def test_grpos_samples_are_measured_at_both_ends(tmp_path, monkeypatch):
    # Every second step repeats the last completions: such a row has no sampling measures.
    sampled = [f"{2 * step - 1},{step / 100},{step / 20}\n{2 * step},,\n" for step in range(1, 21)]
    (tmp_path / "reports/curves").mkdir(parents=True)
    (tmp_path / "reports/curves/grpo.csv").write_text(
        "step,entropy,answer_accuracy\n" + "".join(sampled)
    )
    monkeypatch.setattr(experiments, "DVCFileSystem", lambda rev: DirFileSystem(tmp_path))
    monkeypatch.setattr(experiments, "graded_rows", lambda side, file: ())
    (both, control, *_) = experiments_of("s", study())
    scores = measurements(both)["scores"]
    assert scores["sft"][""] == {"training": {"all": 0.05}, "entropy": {"all": 0.01}}
    assert {name: each["all"] for name, each in scores["grpo"][""].items()} == pytest.approx(
        {"training": 0.975, "entropy": 0.195}
    )
    assert measurements(control)["scores"] == {"control": {}}
    # TRL's trainer logs no accuracy of its samples.
    (tmp_path / "reports/curves/grpo.csv").write_text("step,entropy\n1,0.5\n")
    assert measurements(both)["scores"]["grpo"][""] == {"entropy": {"all": 0.5}}


def test_means_are_over_seeds_and_differences_paired():
    metrics = metrics_of()
    assert metrics["variants"]["sft"]["greedy"]["mean"] == pytest.approx(10 / 40)
    gain = metrics["comparisons"]["sft to grpo"]["greedy"]
    assert [gain[f"seed_{seed}"] for seed in SEEDS] == [0.25, 0.3, 0.2]
    # Student's t with two degrees of freedom.
    half = 4.302653 * statistics.stdev([0.25, 0.3, 0.2]) / math.sqrt(3)
    assert gain["high"] - gain["mean"] == pytest.approx(half)
    same = metrics["comparisons"]["grpo to control"]["greedy"]
    assert same["low"] < 0 < same["high"]


@pytest.mark.parametrize("measure", ["distinct", "unseen pass@1"])
def test_a_measure_on_some_problems_is_compared_on_those_of_both(measure):
    outcome = outcome_of()
    for shared in ("b", "c"):
        for (variant, _), scores in outcome.scores.items():
            own = {"a": 0.5, "b": 0.0} if variant == "sft" else {shared: 0.25, "c": 1.0}
            scores["held_out"][measure] = own
        change = metrics_of(outcome)["comparisons"]["sft to grpo"]
        # No problem is shared the second time.
        assert change.get(measure, {}).get("mean") == (0.25 if shared == "b" else None)


SAME, FEW, MANY = [12] * 3, [1] * 3, [31] * 3
"""Right answers of GRPO, beside twelve of SFT."""


@pytest.mark.parametrize(
    ("claim", "grpo", "verdict"),
    [
        ("better", [30, 31, 29], "As claimed"),
        ("better", [10, 30, 2], "Not settled"),
        ("better", [2, 2, 2], "Not as claimed"),
        ("worse", FEW, "As claimed"),
        ("not better", FEW, "As claimed"),
        ("not better", MANY, "Not as claimed"),
        ("not worse", MANY, "As claimed"),
        ("not worse", FEW, "Not as claimed"),
    ],
)
def test_the_verdict_follows_from_claim_and_interval(claim, grpo, verdict):
    definition = study(comparisons=({"before": "sft", "after": "grpo", "expect": claim},))
    outcome = outcome_of({"sft": SAME, "grpo": grpo, "control": grpo})
    (sentence,) = claim_verdicts(definition, metrics_of(outcome, definition))
    assert sentence.startswith(f"**{verdict}**: ")


def judged(*contrasts: dict[str, Any], mean: float, se: float) -> list[str]:
    """Return the verdicts on claims about sft and grpo, from ten seeds with the same mean."""
    numbers = {"mean": mean, "se": se, "problem_se": 0.0}
    content = {"greedy": numbers | {f"seed_{seed}": mean for seed in range(10)}}
    metrics = {"variants": {"sft": content}, "comparisons": {"sft to grpo": content}}
    claims = tuple({"before": "sft", "after": "grpo", **contrast} for contrast in contrasts)
    sentences = claim_verdicts(study(comparisons=claims, seeds=tuple(range(10))), metrics)
    return [sentence.split("**")[1] for sentence in sentences]


def test_equal_within_the_margin_is_a_claim_that_can_hold():
    for mean, se, verdict in (
        (0.004, 0.003, "As claimed"),
        (0.004, 0.03, "Not settled"),
        # A difference that is clear, but perhaps smaller than the margin.
        (0.015, 0.003, "Not settled"),
        (0.03, 0.003, "Not as claimed"),
    ):
        assert judged({"expect": "no difference"}, mean=mean, se=se) == [verdict]


def test_claims_are_corrected_together_but_not_exploratory_ones():
    gain = {"mean": 0.03, "se": 0.01}  # p 0.024 with 5.5 degrees of freedom
    better = {"expect": "better"}
    assert judged(better, **gain) == ["As claimed"]
    assert judged(better, better, **gain) == ["Not settled"] * 2
    exploratory = {**better, "exploratory": True}
    assert judged(better, exploratory, **gain) == ["As claimed", "Exploratory"]


def test_a_claim_s_markup_is_text_on_a_page_that_runs_nothing(tmp_path):
    (tmp_path / "mine").mkdir()
    text = "# mine\n\n<script>bad()</script> is <b>so</b>.\n\n**Not settled**: **As claimed**.\n"
    (tmp_path / "mine/study.md").write_text(text)
    page = studies_page(tmp_path)
    assert re.findall(r"<td>(\d)</td>", page) == ["0", "0", "1"]
    assert "&lt;script&gt;bad()" in page and "<script" not in page and "<b>" not in page
    assert "default-src 'none'" in page and "script-src" not in page


def test_a_finished_study_writes_its_numbers_their_origin_and_its_pages(tmp_path, monkeypatch):
    content = study().model_dump(mode="json", exclude_unset=True)
    content["variants"]["control"]["params"]["validation.num_problems"] = 10
    definition = tmp_path / "more.yaml"
    write_json(definition, content)
    origin = {"version": "1.0.0", "commit": "abc", "device": "a CPU"}
    outcome = outcome_of(curves={"grpo": {"0": 0.25}, "control": {"0": 1.0}})
    monkeypatch.setattr(experiments, "run_study", lambda *_, **__: outcome)
    monkeypatch.setattr(experiments, "made_from", lambda: origin)
    arguments = [str(definition), "--out", str(tmp_path)]
    result = CliRunner().invoke(study_stage, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    numbers = read_json(tmp_path / "more/study.json")
    assert numbers["made_from"] == origin
    page = (tmp_path / "more/study.md").read_text("utf-8")
    assert all(value in page for value in origin.values())
    validated = {name: steps["0"] for name, steps in numbers["validation"].items()}
    # Each variant has its own params; 64 comes from params.yaml.
    assert {name: each["n"] for name, each in validated.items()} == {"grpo": 64, "control": 10}
    # Three seeds with all answers right leave an interval, cut at 1.
    assert validated["control"]["low"] < 1.0 == validated["control"]["high"]


def test_numbers_of_another_definition_are_refused(tmp_path):
    write_metrics(tmp_path / "more/study.json", metrics_of())
    assert len(write_pages("more", study(), tmp_path)) == 2
    more = {**study().variants, "x": Variant(checkpoint="sft")}
    new = {"before": "sft", "after": "control", "expect": "better"}
    pair = {"before": "sft", "after": "grpo", "expect": "better", "measure": "pass@8"}
    for changes in (
        {"seeds": (0, 1, 2, 3)},
        {"variants": more},
        {"comparisons": (new,)},
        {"comparisons": (pair,)},
    ):
        with pytest.raises(UserError, match="make study STUDY=more"):
            write_pages("more", study(**changes), tmp_path)


def test_a_table_without_its_second_mark_is_refused(tmp_path):
    write_metrics(tmp_path / "more/study.json", metrics_of())
    page = tmp_path / "results.md"
    for text in (START.format("other"), f"{START.format('more')}\nold\n{END}\nrest"):
        page.write_text(text)
        write_pages("more", study(), tmp_path, results=page)
    assert "25.0" in page.read_text() and page.read_text().endswith(f"\n{END}\nrest")
    page.write_text(START.format("more"))
    with pytest.raises(UserError, match=r"results\.md: no "):
        write_pages("more", study(), tmp_path, results=page)


def completion(mode: str, problem: str, *, answer_ok: bool, text: str = "") -> GradedCompletion:
    fields: dict[str, Any] = dict.fromkeys(GradedCompletion.__slots__, "")
    fields |= {"benchmark": "held_out", "mode": mode, "problem_id": problem}
    return GradedCompletion(**fields | {"answer_ok": answer_ok, "completion": text})


def test_one_problem_in_the_first_seed_is_no_certainty():
    outcome = outcome_of()
    for (_, seed), scores in outcome.scores.items():
        names = "a" if seed == SEEDS[0] else "abc"
        scores["held_out"]["distinct"] = dict.fromkeys(names, 1.0)
    assert metrics_of(outcome)["variants"]["sft"]["distinct"]["low"] < 0.9
