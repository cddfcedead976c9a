"""Logs of other tools are read by their form, paired by problem and compared with errors.

tests/golden/logs: lm-evaluation-harness 0.4.13 on two tiny models and five items, inspect_ai
0.3.285 with its mock model, verifiers 0.4.0 and lighteval 0.13.0 by their own writers, TRL 1.14's
table, and rows of OpenAI's batches and of vLLM.
"""

import itertools
import json
import zipfile

import numpy as np
import pytest
import scipy.stats
from click.testing import CliRunner

from commands.compare_logs import main
from lib.artifacts import write_jsonl
from lib.core.errors import UserError
from lib.grading.logs import LoggedAnswer, mean_scores, pairing, read_log, regrade
from lib.report.log_comparison import adjusted, compare_scores
from tests.conftest import ROOT, run_python

LOGS = ROOT / "tests" / "golden" / "logs"
PROBLEMS = ["What is 6*7?", "What is 10/4?", "What is 2+2?", "What is 3^2?", "What is 1/2+1/3?"]
# Log of model A -> tool, and each answer's score by the tool.
SCORES = {
    "lm_eval_a": ("lm-evaluation-harness", [0, 0, 1, 0, 0]),
    "lm_eval_b": ("lm-evaluation-harness", [0, 0, 0, 1, 0]),
    "inspect_a.eval": ("inspect_ai", [1, 0, 1, 0, 1]),
    "inspect_b.json": ("inspect_ai", [1, 1, 0, 1, 0]),
    "verifiers_a": ("verifiers", [1, 0, 1, 0, 1]),
    "lighteval_b": ("lighteval", [1, 1, 0, 1, 0]),
    "trl_a.parquet": ("TRL", [1, 0, 1, 0, 1]),
}


@pytest.mark.parametrize("log", SCORES)
def test_a_tools_log_is_read_by_its_form(log):
    tool, answers = read_log(LOGS / log)
    assert (tool, [answer.score for answer in answers]) == SCORES[log]
    assert [answer.problem for answer in answers] == PROBLEMS
    assert [answer.reference for answer in answers] == ["42", "2.5", "4", "9", "5/6"]
    assert all(answer.completion for answer in answers)


@pytest.mark.parametrize(("log", "samples"), [("openai_a.jsonl", 1), ("vllm_a.jsonl", 2)])
def test_logs_without_scores_are_judged_by_references(log, samples):
    _, references = read_log(LOGS / "references.jsonl")
    known = {key: row for row in references for key in (row.id, row.problem)}
    judged, disagreements = regrade(read_log(LOGS / log)[1], known)
    right = [answer.score for answer in judged]
    # vLLM's second sample is the reference.
    assert right[::samples] == [1, 1, 1, 0, 1]
    assert sum(right) == 4 if samples == 1 else 9
    assert disagreements == []


def test_a_reference_of_another_benchmark_with_the_same_id_does_not_count():
    row = LoggedAnswer("two", "0", "What is 2 + 3?", "5", "The answer is 5", None)
    for known in (
        row._replace(problem="What is 1 + 1?", reference="2"),
        row._replace(reference=""),
    ):
        (judged,), _ = regrade([row], {"0": known})
        assert (judged.reference, judged.score) == ("5", 1)


def test_the_verifier_names_answers_that_a_tool_scored_otherwise():
    _, disagreements = regrade(read_log(LOGS / "inspect_a.eval")[1], {})
    # "It is 5/2" for 2.5: the tool compares texts.
    assert [answer.problem for answer in disagreements] == ["What is 10/4?"]


def test_results_of_verifiers_are_read_by_their_columns(tmp_path):
    row = {
        "example_id": 7,
        "prompt": [{"role": "user", "content": "What is 6*7?"}],
        "completion": [{"role": "assistant", "content": "42"}],
        "answer": "42",
        "task": "five",
        "reward": 0.5,
    }
    write_jsonl(tmp_path / "results.jsonl", [row])
    assert read_log(tmp_path)[1] == [LoggedAnswer("five", "7", "What is 6*7?", "42", "42", 0.5)]


def test_greedy_and_sampled_graded_rows_are_kept_apart(tmp_path):
    row = {"benchmark": "held_out", "problem_id": "p", "problem": "x", "answer_ok": True}
    write_jsonl(tmp_path / "graded.jsonl", [row | {"mode": "greedy"}, row | {"mode": "sampled"}])
    _, log = read_log(tmp_path / "graded.jsonl")
    assert [answer.benchmark for answer in log] == ["held_out greedy", "held_out sampled"]


def answers(scores, benchmark="five", ids="q{}"):
    return [
        LoggedAnswer(benchmark, ids.format(n), f"problem {n}", "", "", score)
        for n, score in enumerate(scores)
    ]


def compare_logs(before, after, by):
    return [*compare_scores(mean_scores(before, by), mean_scores(after, by))]


def test_differences_and_intervals_equal_scipys_on_200_pairs():
    rng = np.random.default_rng(0)
    for _ in range(200):
        before, after = rng.integers(0, 2, (2, 200))
        (found,) = compare_logs(answers(before), answers(after), "id")
        paired = scipy.stats.ttest_rel(after, before)
        assert found.change.difference.value == pytest.approx(after.mean() - before.mean())
        # Bonett and Price (2012): with a loss and a gain of the size of all changes, here 1.
        padded = [*(after - before), -1, 1]
        low, high = scipy.stats.norm.interval(0.95, np.mean(padded), np.std(padded) / 202**0.5)
        interval, usual = found.change.interval, paired.confidence_interval()
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-12)
        assert (interval.low, interval.high) == pytest.approx(tuple(usual), abs=0.01)
        assert abs(found.change.difference.value) < found.equivalent_within < 0.3


def test_p_values_follow_all_permutations_of_200_pairs():
    rng = np.random.default_rng(0)
    flips = {m: np.array(list(itertools.product([-1, 1], repeat=m))) for m in range(6, 15)}
    is_smaller, num_smaller = [], 0
    for _ in range(200):
        num_changed = int(rng.integers(6, 15))
        chances = [0.05] * 4 + [0.2] * 4
        changes = rng.choice([-4, -3, -2, -1, 1, 2, 3, 4], num_changed, p=chances) / 4
        before = [float(change < 0) for change in changes] + [0.0] * 50
        after = [*(before[:num_changed] + changes), *[0.0] * 50]
        (found,) = compare_logs(answers(before), answers(after), "id")
        sums = abs(flips[num_changed] @ changes) - abs(changes.sum())
        equal = (abs(sums) < 1e-9).mean()
        exact = (sums > 1e-9).mean() + equal
        # Half of the permutations that are as far: a normal distribution has no steps.
        assert found.change.p_value == pytest.approx(exact - equal / 2, abs=0.12)
        is_smaller.append(found.change.p_value < 0.05)
        assert not is_smaller[-1] or exact < 0.05
        num_smaller += exact < 0.05
    assert sum(is_smaller) >= 0.9 * num_smaller > 50


def test_several_samples_of_a_problem_are_one_unit():
    once = compare_logs(answers([1, 0, 0, 1]), answers([0, 1, 1, 1]), "text")
    copied = compare_logs(answers([1, 0, 0, 1]) * 3, answers([0, 1, 1, 1]) * 3, "text")
    assert once == copied


def test_rows_are_paired_by_id_only_if_equal_ids_have_equal_problems():
    log = answers([1, 0])
    assert pairing(log, log[::-1]) == "id"
    assert pairing(log, [each._replace(id="q0") for each in log]) == "text"
    moved = [each._replace(problem="another") for each in log]
    assert pairing(log, moved) == "text"
    with pytest.raises(UserError, match="--by"):
        compare_logs(log, moved, "text")
    (found,) = compare_logs(log, moved, "order")
    assert (found.before.n, found.change.difference.value) == (2, 0)


def test_unpaired_and_unscored_problems_are_counted():
    (found,) = compare_logs(answers([1, 0, 1, None]), answers([1, 0]), "id")
    assert (found.before.n, found.only_before, found.only_after) == (2, 1, 0)


def test_benchmarks_are_compared_apart_and_together_with_holm():
    before = answers([0] * 12, "one") + answers([1] * 12, "two")
    after = answers([1] * 12, "one") + answers([1] * 11 + [0], "two")
    found = adjusted(compare_logs(before, after, "id"))
    assert [each.benchmark for each in found] == ["one", "two", "all"]
    p_values = [each.change.p_value for each in found]
    assert found[0].p_holm == pytest.approx(min(1, 3 * min(p_values)))
    assert [each.verdict.split()[0] for each in found] == ["better", "no", "better"]


def test_a_problem_counts_once_however_many_filters_read_it():
    def read(scores):
        names = ("math (strict-match)", "math (flexible-extract)", "other")
        return [each for name in names for each in answers(scores, name)]

    *_, together = compare_logs(read([0, 0, 1, 1]), read([1, 0, 1, 1]), "id")
    assert (together.benchmark, together.before.n) == ("all", 8)
    rows = [each for each in read([0, 1]) if each.benchmark != "other"]
    assert [each.benchmark for each in compare_logs(rows, rows, "id")] == [
        "math (strict-match)",
        "math (flexible-extract)",
    ]


def test_rewards_beyond_0_and_1_are_no_rates():
    with pytest.raises(UserError, match="--grade"):
        compare_logs(answers([2.0, 0]), answers([0, 0]), "id")


def test_the_command_fails_only_if_a_later_log_is_worse(tmp_path):
    for name, score in (("good", True), ("bad", False)):
        rows = ({"id": n, "problem": f"p{n}", "answer_ok": score} for n in range(30))
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    good, bad = str(tmp_path / "good.jsonl"), str(tmp_path / "bad.jsonl")
    worse = CliRunner().invoke(main, [good, bad, good])
    assert worse.exit_code == 1
    assert "worse" in worse.output
    assert CliRunner().invoke(main, [bad, good]).exit_code == 0
    content = json.loads(CliRunner().invoke(main, [bad, good, "--json"]).output)
    assert [each["verdict"] for each in content] == ["better"]
    assert CliRunner().invoke(main, [bad, good, "--md"]).output.count("|---") == 0


@pytest.mark.parametrize("name", ["log.eval", "log.parquet", "log.json", "log.jsonl"])
def test_a_damaged_log_is_named(name, tmp_path):
    path = tmp_path / name
    path.write_text("{")
    with pytest.raises(UserError, match=name):
        read_log(path)


def test_an_archive_larger_than_a_log_is_refused(tmp_path):
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", b" " * (2**25 + 1))
    with pytest.raises(UserError, match="longer than"):
        read_log(path)


ONLY_LISTED = """
import importlib.metadata, sys, tomllib
with open("reckon_verifier/pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
listed = {*project["optional-dependencies"]["logs"], "sympy", "mpmath", "markupsafe"}
ours = {"lib", "commands", "stages", "reckon_verifier"}
version = importlib.metadata.version

class Refuse:
    def find_spec(name, *_):
        room = name.partition(".")[0]
        if room[0] != "_" and room not in listed | ours | sys.stdlib_module_names:
            raise ModuleNotFoundError(f"no {name} here", name=name)

def installed(name):
    if name not in listed:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

sys.meta_path.insert(0, Refuse)
importlib.metadata.version = installed
from commands import main
main()
"""


def test_the_extra_logs_has_all_that_two_commands_need(tmp_path):
    log, references = LOGS / "openai_a.jsonl", ("--references", LOGS / "references.jsonl")
    for other in ("inspect_b.json", "inspect_a.eval", "lighteval_b"):
        done = run_python(ONLY_LISTED, "compare-logs", LOGS / "trl_a.parquet", LOGS / other)
        assert "no difference" in done.stdout, done.stderr
    graded = run_python(ONLY_LISTED, "grade", log, *references, "--out", tmp_path / "graded.jsonl")
    assert "right 0.8000" in graded.stdout, graded.stderr
    assert "torch missing" in run_python(ONLY_LISTED, "summary").stderr
