"""`prepare` turns sources into the stages' input files."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib.artifacts import hash_path, write_jsonl
from lib.artifacts.problems import Problem, read_benchmarks, read_problems
from lib.core.errors import UserError
from lib.problems.prepare import (
    dropped_examples,
    finish_sets,
    gathered_sets,
    refuse_few_problems,
    refuse_long_prompts,
    set_metrics,
    tokenizer_problems,
    write_sets,
)
from lib.problems.selection import PassRate, write_pass_rates
from tests.lib.params.changes import accepted
from tests.lib.problems.conftest import counter, path_source, whole

GSM8K = [
    {
        "question": f"A farm has {n} ducks and each of them lays {k} eggs on every day. How many?",
        "answer": f"It is {n}*{k}=<<{n}*{k}={n * k}>>{n * k}.\n#### {n * k:,}",
    }
    for n in range(2, 12)
    for k in (3, 400)
]
OWN = [{"task": f"How much is {n} and one?", "truth": str(n + 1), "how": "Add."} for n in range(9)]
OWN_COLUMNS = {"problem": "task", "reference": "truth", "solution": "how"}


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    """Make a working directory with two files under data/raw."""
    monkeypatch.chdir(tmp_path)
    raw = tmp_path / "data" / "raw"
    raw.mkdir(parents=True)
    for name, rows in [("gsm8k", GSM8K), ("own", OWN)]:
        write_jsonl(raw / f"{name}.jsonl", rows)


@contextlib.contextmanager
def _gathered(changes):
    """Yield the sets of the smoke preset with changes, by dotted key, and its params."""
    params = accepted(changes, "smoke")
    with gathered_sets(params.prepare, seed=params.seed, raw=Path("data/raw")) as gathered:
        yield gathered, params


def _prepare(changes, folder=Path("out")):
    with _gathered(changes) as (gathered, params):
        finish_sets(
            gathered,
            params.prepare,
            counter=counter(eos_token=""),
            max_seq_length=params.model.max_seq_length,
            seed=params.seed,
        )
        write_sets(gathered, folder, validation=params.validation)
        return set_metrics(gathered), dropped_examples(gathered)


def _written(name):
    return list(read_problems(Path(f"out/{name}.jsonl")))


def test_the_default_writes_what_the_generator_makes(sets):
    metrics, dropped = _prepare({})
    assert (_written("sft"), _written("grpo")) == (sets.sft, sets.grpo)
    assert read_benchmarks(Path("out/benchmarks"), ["held_out", "harder"]) == sets.benchmarks
    assert _written("validation") == []
    assert metrics["num_sft"] == len(sets.sft)
    assert dropped == {}


def test_a_tokenizer_learns_the_words_of_all_sets(sets):
    with _gathered({}) as (gathered, _):
        assert list(tokenizer_problems(gathered)) == sets.sft
    with _gathered({"prepare.sft.sources": whole("gsm8k")}) as (gathered, _):
        assert list(tokenizer_problems(gathered))[len(GSM8K) :] == sets.grpo


def test_validation_sets_are_selected_by_content_and_not_empty():
    names = {"validation.sets": ["validation", "harder"], "validation.num_problems": 5}
    _prepare({"prepare.validation_share": 0.2, **names})
    for name, source in (("validation", "validation"), ("harder", "benchmarks/harder")):
        problems = sorted(_written(source), key=lambda each: each.id)
        assert _written(f"validation/{name}") == problems[:5]
    assert {path.stem for path in Path("out/validation").iterdir()} == {"harder", "validation"}
    with pytest.raises(UserError, match=r"validation\.sets: `validation`"):
        _prepare({"prepare.validation_share": 1e-9, **names}, Path("other"))


def test_instructions_are_no_validation_set():
    write_jsonl(Path("data/raw/alpaca.jsonl"), [{"instruction": "Name a colour.", "output": "Red"}])
    source = {"path": "data/raw/alpaca.jsonl", "adapter": "alpaca_eval", "columns": {}}
    changes = {"prepare.benchmarks.0.source": source | {"limit": "all"}}
    _prepare(changes | {"validation.sets": ["harder"]})
    with pytest.raises(UserError, match=r"validation\.sets: `held_out` has instructions"):
        _prepare(changes | {"validation.sets": ["held_out"]}, Path("other"))
    assert not Path("other").exists()


def test_files_generator_and_columns_mix_with_weights(smoke):
    sources = [
        {"weight": 2, "source": path_source("gsm8k")},
        {"weight": 1.0, "source": path_source("own", **OWN_COLUMNS)},
        {"weight": "all", "source": {"generator": "grpo"}},
    ]
    metrics, _ = _prepare({"prepare.sft.sources": sources})
    mixed = [problem.problem for problem in _written("sft")]
    assert sum("ducks" in text for text in mixed) == 18
    assert sum("and one?" in text for text in mixed) == 9
    assert metrics["sft"]["dropped"]["not_drawn"]["count"] == len(GSM8K) - 18
    assert metrics["num_sft"] == 27 + smoke.prepare.synthetic.num_grpo


def test_duplicates_across_sources_and_leaks_are_dropped():
    write_jsonl(Path("data/raw/test.jsonl"), [GSM8K[3]])
    changes = {
        "prepare.benchmarks.0.source": path_source("test"),
        "prepare.grpo.sources": whole("gsm8k", "gsm8k"),
        "prepare.contamination_ngram": 14,
    }
    metrics, dropped = _prepare(changes)
    grpo = metrics["grpo"]
    assert grpo["dropped"]["exact_duplicate"]["count"] == len(GSM8K)
    assert grpo["overlap"]["held_out"]["benchmark_rows"] == 1
    assert grpo["dropped"]["contaminated"]["count"] == 1
    assert metrics["num_grpo"] == len(GSM8K) - 1
    assert "shares with held_out" in dropped["grpo"]["contaminated"][0]["found"]


@pytest.mark.parametrize("names", [["sft", "grpo"], ["grpo"]])
def test_validation_is_held_back_of_both_sets_once(names):
    sources = {f"prepare.{name}.sources": whole("gsm8k") for name in ("sft", "grpo")}
    shares = {"prepare.validation_share": 0.4, "prepare.validation_from": names}
    few, _ = _prepare(sources | shares | {"prepare.sft.num_train_examples": 8}, Path("few"))
    assert few["num_sft"] == 8
    metrics, _ = _prepare(sources | shares)
    held, trained = ([problem.id for problem in _written(name)] for name in ("validation", "sft"))
    assert len(held) == len(set(held)) == metrics["num_validation"] > 0
    assert not set(trained) & set(held)
    assert len(set(trained)) + len(held) == len(GSM8K)


def test_only_the_sets_that_params_name_give_validation():
    full, _ = _prepare({}, Path("whole"))
    shares = {"prepare.validation_share": 0.4, "prepare.validation_from": ["grpo"]}
    partly, _ = _prepare(shares, Path("partly"))
    assert partly["num_sft"] == full["num_sft"]
    assert partly["num_grpo"] + partly["num_validation"] == full["num_grpo"]
    assert partly["num_validation"] > 0


def test_a_difficulty_file_keeps_a_band_of_the_grpo_problems():
    ids = [Problem.create(problem=row["question"], reference="").id for row in GSM8K]
    rates = {key: PassRate(number % 5, 4) for number, key in enumerate(ids[1:])}
    file = "data/raw/difficulty.jsonl"
    write_pass_rates(Path(file), rates)
    band = {"file": file, "lowest": 0.25, "highest": 0.75, "easy_first": True}
    sources = {"prepare.grpo.sources": whole("gsm8k"), "prepare.grpo.difficulty": band}
    metrics, _ = _prepare({**sources, "grpo.shuffle": False})
    # The band leaves out rates 0 and 1, and the problem without a rate.
    kept = [rates[problem.id].value for problem in _written("grpo")]
    assert kept == [0.75] * 4 + [0.5] * 4 + [0.25] * 4
    dropped = metrics["grpo"]["dropped"]
    assert dropped["pass_rate_outside_band"]["count"] == 7
    assert dropped["no_pass_rate"]["count"] == 1


def test_fewer_grpo_problems_than_a_step_takes_are_refused():
    with _gathered({}) as (gathered, _):
        count = len(gathered.training[1].train)
        refuse_few_problems(gathered, prompts_per_step=count)
        with pytest.raises(UserError, match=f"prompts_per_step={count + 1}: only {count} GRPO"):
            refuse_few_problems(gathered, prompts_per_step=count + 1)


def test_a_benchmark_prompt_that_fills_the_positions_is_refused():
    of_ten = SimpleNamespace(prompts=lambda batch: [10] * len(batch))
    with _gathered({}) as (gathered, _):
        for positions in (None, 11):
            refuse_long_prompts(gathered, ["held_out"], counter=of_ten, positions=positions)
        with pytest.raises(UserError, match=r"held_out: problem .* has 10 tokens"):
            refuse_long_prompts(gathered, ["held_out"], counter=of_ten, positions=10)


def test_generated_problems_leak_only_as_a_whole():
    """Their sentences are templates, which every set has."""
    metrics, _ = _prepare({"prepare.contamination_ngram": 8})
    assert metrics["grpo"]["dropped"].get("contaminated", {"count": 0})["count"] == 0


def test_a_bad_row_leaves_nothing_half_written():
    write_jsonl(Path("data/raw/gsm8k.jsonl"), [*GSM8K, {"question": "What?"}])
    row = r"grpo\.sources\[0\]: .*gsm8k\.jsonl:21: .*`reference`: .*bad_rows: drop"
    with pytest.raises(UserError, match=row):
        _prepare({"prepare.grpo.sources": whole("gsm8k")})
    assert not Path("out").exists()
    assert not list(Path("data/scratch").iterdir())


def test_the_same_input_gives_the_same_bytes():
    shares = {"prepare.near_duplicate_similarity": 0.9, "prepare.validation_share": 0.1}
    changes = {"prepare.sft.sources": whole("gsm8k"), **shares}
    assert _prepare(changes, Path("one")) == _prepare(changes, Path("two"))
    assert hash_path(Path("one")) == hash_path(Path("two"))


def test_a_benchmark_holds_no_problem_twice():
    """A repeated problem would count twice in the rates."""
    write_jsonl(Path("data/raw/own.jsonl"), [*OWN, OWN[0]])
    figures, _ = _prepare({"prepare.benchmarks.0.source": path_source("own", **OWN_COLUMNS)})
    benchmark = figures["benchmarks"]["held_out"]
    assert benchmark["kept"] == len(OWN)
    assert benchmark["dropped"]["exact_duplicate"]["count"] == 1


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("lacks_solution", [True, False])
def test_one_file_for_both_sets_gives_what_two_copies_give(bare, lacks_solution):
    """Such a file is read and judged once."""
    rows = [*GSM8K, GSM8K[0], {"question": "4 + 3?", "answer": "7"}, {"question": "?"}]
    rows = rows if lacks_solution else [row for row in rows if row["question"] != "4 + 3?"]
    for name in ("one", "other"):
        write_jsonl(Path(f"data/raw/{name}.jsonl"), rows)
    made = {}
    for name in ("one", "other"):
        sources = {"prepare.sft.sources": whole("one"), "prepare.grpo.sources": whole(name)}
        options = {"prepare.sft.bare_answers": bare, "prepare.bad_rows": "drop"}
        near = {"prepare.near_duplicate_similarity": 0.9, "prepare.grpo.numeric_only": True}
        share = {"prepare.validation_share": 0.2}
        figures, examples = _prepare({**sources, **options, **near, **share}, Path(name))
        text = json.dumps([figures, examples]).replace("other.jsonl", "one.jsonl")
        made[name] = (text, hash_path(Path(name)))
    assert made["one"] == made["other"]


def test_a_generator_that_runs_out_of_problems_says_so():
    small = {"max_value": 10, "max_operand": 2, "max_factor": 2, "level_weights": [1.0]}
    changes = {f"prepare.synthetic.{name}": value for name, value in small.items()}
    with pytest.raises(UserError, match=r"prepare\.synthetic: 5000 problems for `grpo`"):
        _prepare({**changes, "prepare.synthetic.num_grpo": 5000})


PROMPT = "A conversation between User and Assistant. User: What is {n} + 1? Assistant: <think>"


def _responses(rows, **sft):
    """Prepare the SFT set of responses to r1_zero's prompts; count dropped rows, list the kept."""
    write_jsonl(Path("data/raw/responses.jsonl"), rows)
    source = path_source("responses") | {"adapter": "math_jsonl"}
    sft["sources"] = [{"weight": "all", "source": source}]
    changes = {f"prepare.sft.{name}": value for name, value in sft.items()}
    dropped = _prepare({**changes, "prepare.bad_rows": "drop"})[0]["sft"]["dropped"]
    return {reason: each["count"] for reason, each in dropped.items()}, _written("sft")


def _response(n, result, **truth):
    text = f" So  it\nis {result}. </think> <answer> {result} </answer>"
    return {"prompt": PROMPT.format(n=n), "response": text, **truth}


@pytest.mark.parametrize("column", ["ground_truth", "answer", "truth_from"])
def test_a_response_is_judged_by_its_row_or_a_second_set(column):
    truth = [{"problem": f"What is  {n} + 1?", "answer": str(n + 1)} for n in range(30)]
    write_jsonl(Path("data/raw/truth.jsonl"), truth)
    own = column != "truth_from"
    rows = [_response(n, n + 1 + n % 2, **{column: str(n + 1)} if own else {}) for n in range(40)]
    rows.append({**rows[0], "response": " So it is 1 and we go on and on and"})
    dropped, kept = _responses(
        rows, correct_only=True, truth_from=[] if own else [path_source("truth")]
    )
    num_known = 40 if own else 30
    assert dropped.get("missing_field", 0) == 40 - num_known
    assert (dropped["solution_not_correct"], dropped["no_answer"]) == (num_known // 2, 1)
    assert [each.reference for each in kept] == [str(n + 1) for n in range(0, num_known, 2)]


def test_a_response_is_no_truth():
    with pytest.raises(UserError, match=r"`reference`.*`truth_from:`"):
        _responses([_response(1, 2)])
