"""`prepare` turns sources into the stages' input files."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from lib.artifacts import hash_path, write_jsonl
from lib.artifacts.problems import Problem, read_benchmarks, read_problems
from lib.core.errors import UserError
from lib.params import compose_preset, parse_params
from lib.problems.generated import synthetic_sets
from lib.problems.prepare import (
    dropped_examples,
    finish_sets,
    gathered_sets,
    refuse_few_problems,
    set_metrics,
    tokenizer_problems,
    write_sets,
)
from lib.problems.selection import PassRate, write_pass_rates
from tests.lib.problems.conftest import counter

GSM8K = [
    {
        "question": f"A farm has {n} ducks and each of them lays {k} eggs on every day. How many?",
        "answer": f"It is {n}*{k}=<<{n}*{k}={n * k}>>{n * k}.\n#### {n * k:,}",
    }
    for n in range(2, 12)
    for k in (3, 400)
]
OWN = [{"task": f"How much is {n} and one?", "truth": str(n + 1), "how": "Add."} for n in range(9)]


@pytest.fixture
def content():
    return YAML(typ="safe").load(compose_preset("smoke"))


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    """Make a working directory with two files under data/raw."""
    monkeypatch.chdir(tmp_path)
    raw = tmp_path / "data" / "raw"
    raw.mkdir(parents=True)
    for name, rows in [("gsm8k", GSM8K), ("own", OWN)]:
        write_jsonl(raw / f"{name}.jsonl", rows)
    return tmp_path


def _path(name, **columns):
    file = f"data/raw/{name}.jsonl"
    return {"path": file, "adapter": "table", "columns": columns, "limit": "all"}


def _prepare(content, folder=Path("out")):
    params = parse_params(content, origin="params.yaml")
    raw = Path("data/raw")
    with gathered_sets(params.prepare, seed=params.seed, raw=raw) as gathered:
        finish_sets(
            gathered,
            params.prepare,
            counter=counter(eos_token=""),
            max_seq_length=params.model.max_seq_length,
            seed=params.seed,
        )
        write_sets(gathered, folder, validation=params.validation)
        return set_metrics(gathered), dropped_examples(gathered)


def test_the_default_writes_what_the_generator_makes(content):
    metrics, dropped = _prepare(content)
    params = parse_params(content, origin="params.yaml")
    made = synthetic_sets(params.prepare.synthetic, seed=params.seed)
    assert list(read_problems(Path("out/sft.jsonl"))) == made.sft
    assert list(read_problems(Path("out/grpo.jsonl"))) == made.grpo
    assert read_benchmarks(Path("out/benchmarks"), ["held_out", "harder"]) == made.benchmarks
    assert list(read_problems(Path("out/validation.jsonl"))) == []
    assert metrics["num_sft"] == len(made.sft)
    assert dropped == {}


def test_a_tokenizer_learns_the_words_of_all_sets(content):
    def learnt():
        params = parse_params(content, origin="params.yaml")
        with gathered_sets(params.prepare, seed=params.seed, raw=Path("data/raw")) as sets:
            return list(tokenizer_problems(sets))

    made = synthetic_sets(parse_params(content, origin="").prepare.synthetic, seed=content["seed"])
    assert learnt() == made.sft
    content["prepare"]["sft"]["sources"] = [{"weight": "all", "source": _path("gsm8k")}]
    assert learnt()[len(GSM8K) :] == made.grpo


def test_validation_sets_are_selected_by_content_and_not_empty(content):
    content["prepare"]["validation_share"] = 0.2
    content["validation"] |= {"sets": ["validation", "harder"], "num_problems": 5}
    _prepare(content)
    for name, source in (("validation", "validation"), ("harder", "benchmarks/harder")):
        problems = sorted(read_problems(Path(f"out/{source}.jsonl")), key=lambda each: each.id)
        assert list(read_problems(Path(f"out/validation/{name}.jsonl"))) == problems[:5]
    assert {path.stem for path in Path("out/validation").iterdir()} == {"harder", "validation"}
    content["prepare"]["validation_share"] = 1e-9
    with pytest.raises(UserError, match=r"validation\.sets: `validation`"):
        _prepare(content, Path("other"))


def test_files_generator_and_columns_mix_with_weights(content):
    own = _path("own", problem="task", reference="truth", solution="how")
    content["prepare"]["sft"]["sources"] = [
        {"weight": 2, "source": _path("gsm8k")},
        {"weight": 1.0, "source": own},
        {"weight": "all", "source": {"generator": "grpo"}},
    ]
    metrics, _ = _prepare(content)
    mixed = [problem.problem for problem in read_problems(Path("out/sft.jsonl"))]
    assert sum("ducks" in text for text in mixed) == 18
    assert sum("and one?" in text for text in mixed) == 9
    assert metrics["sft"]["dropped"]["not_drawn"]["count"] == len(GSM8K) - 18
    assert metrics["num_sft"] == 27 + content["prepare"]["synthetic"]["num_grpo"]


def test_duplicates_across_sources_and_leaks_are_dropped(content):
    write_jsonl(Path("data/raw/test.jsonl"), [GSM8K[3]])
    content["prepare"]["benchmarks"].append({"name": "farm", "source": _path("test")})
    twice = [{"weight": "all", "source": _path("gsm8k")}] * 2
    content["prepare"]["grpo"]["sources"] = twice
    content["prepare"]["contamination_ngram"] = 14
    metrics, dropped = _prepare(content)
    assert metrics["grpo"]["dropped"]["exact_duplicate"]["count"] == len(GSM8K)
    assert metrics["grpo"]["overlap"]["farm"]["benchmark_rows"] == 1
    assert metrics["grpo"]["dropped"]["contaminated"]["count"] == 1
    assert metrics["num_grpo"] == len(GSM8K) - 1
    assert "shares with farm" in dropped["grpo"]["contaminated"][0]["found"]


@pytest.mark.parametrize("sets", [["sft", "grpo"], ["grpo"]])
def test_validation_is_held_back_of_both_sets_once(content, sets):
    both = [{"weight": "all", "source": _path("gsm8k")}]
    content["prepare"]["sft"]["sources"] = content["prepare"]["grpo"]["sources"] = both
    content["prepare"] |= {"validation_share": 0.4, "validation_from": sets}
    metrics, _ = _prepare(content)
    held = [problem.id for problem in read_problems(Path("out/validation.jsonl"))]
    trained = {problem.id for problem in read_problems(Path("out/sft.jsonl"))}
    assert len(held) == len(set(held)) == metrics["num_validation"] > 0
    assert not trained & set(held)
    assert len(trained) + len(held) == len(GSM8K)


def test_only_the_sets_that_params_name_give_validation(content):
    whole, _ = _prepare(content, Path("whole"))
    content["prepare"] |= {"validation_share": 0.4, "validation_from": ["grpo"]}
    partly, _ = _prepare(content, Path("partly"))
    assert partly["num_sft"] == whole["num_sft"]
    assert partly["num_grpo"] + partly["num_validation"] == whole["num_grpo"]
    assert partly["num_validation"] > 0


def test_a_difficulty_file_keeps_a_band_of_the_grpo_problems(content):
    ids = [Problem.create(problem=row["question"], reference="").id for row in GSM8K]
    rates = {key: PassRate(number % 5, 4) for number, key in enumerate(ids)}
    write_pass_rates(Path("data/raw/difficulty.jsonl"), rates)
    content["prepare"]["grpo"] |= {
        "sources": [{"weight": "all", "source": _path("gsm8k")}],
        "difficulty": {
            "file": "data/raw/difficulty.jsonl",
            "lowest": 0.1,
            "highest": 0.9,
            "easy_first": True,
        },
    }
    content["grpo"]["shuffle"] = False
    metrics, _ = _prepare(content)
    # The band leaves out rates 0 and 1, 4 problems each.
    kept = [rates[problem.id].value for problem in read_problems(Path("out/grpo.jsonl"))]
    assert kept == [0.75] * 4 + [0.5] * 4 + [0.25] * 4
    assert metrics["grpo"]["dropped"]["pass_rate_outside_band"]["count"] == 8


def test_fewer_grpo_problems_than_a_step_takes_are_refused(content):
    params = parse_params(content, origin="params.yaml")
    with gathered_sets(params.prepare, seed=params.seed, raw=Path("data/raw")) as sets:
        count = len(sets.training[1].train)
        refuse_few_problems(sets, prompts_per_step=count)
        with pytest.raises(UserError, match=f"prompts_per_step={count + 1}: only {count} GRPO"):
            refuse_few_problems(sets, prompts_per_step=count + 1)


def test_a_bad_row_leaves_nothing_half_written(content):
    with Path("data/raw/gsm8k.jsonl").open("a") as lines:
        lines.write('{"question": "What?"}\n')
    content["prepare"]["grpo"]["sources"] = [{"weight": "all", "source": _path("gsm8k")}]
    with pytest.raises(UserError, match=r"grpo\.sources\[0\]: .*gsm8k\.jsonl:21: .*`reference`"):
        _prepare(content)
    assert not Path("out").exists()
    assert not list(Path("data/scratch").iterdir())


def test_the_same_input_gives_the_same_bytes(content):
    content["prepare"]["sft"]["sources"] = [{"weight": "all", "source": _path("gsm8k")}]
    content["prepare"] |= {"near_duplicate_similarity": 0.9, "validation_share": 0.1}
    assert _prepare(content, Path("one")) == _prepare(content, Path("two"))
    assert hash_path(Path("one")) == hash_path(Path("two"))


def test_a_benchmark_holds_no_problem_twice(content, checkout):
    """A repeated problem would count twice in the rates."""
    write_jsonl(checkout / "data/raw/own.jsonl", [*OWN, OWN[0]])
    source = _path("own", problem="task", reference="truth", solution="how")
    content["prepare"]["benchmarks"].append({"name": "mine", "source": source})
    figures, _ = _prepare(content)
    assert figures["benchmarks"]["mine"]["kept"] == len(OWN)
    assert figures["benchmarks"]["mine"]["dropped"]["exact_duplicate"]["count"] == 1


def test_a_generator_that_runs_out_of_problems_says_so(content):
    content["prepare"]["synthetic"] |= {
        "max_value": 10,
        "max_operand": 2,
        "max_factor": 2,
        "level_weights": [1.0],
        "num_grpo": 5000,
    }
    with pytest.raises(UserError, match=r"prepare\.synthetic: 5000 problems for `grpo`"):
        _prepare(content)


PROMPT = "A conversation between User and Assistant. User: What is {n} + 1? Assistant: <think>"


def _responses(content, rows, **sft):
    """Prepare the SFT set of responses to r1_zero's prompts; return dropped and kept rows."""
    write_jsonl(Path("data/raw/responses.jsonl"), rows)
    source = _path("responses") | {"adapter": "math_jsonl"}
    content["prepare"]["sft"] |= {"sources": [{"weight": "all", "source": source}], **sft}
    content["prepare"]["bad_rows"] = "drop"
    metrics, _ = _prepare(content)
    return metrics["sft"]["dropped"], list(read_problems(Path("out/sft.jsonl")))


def _response(n, result, **truth):
    text = f" So  it\nis {result}. </think> <answer> {result} </answer>"
    return {"prompt": PROMPT.format(n=n), "response": text, **truth}


@pytest.mark.parametrize("column", ["ground_truth", "answer"])
def test_a_wrong_response_is_judged_by_its_own_truth(content, column):
    rows = [_response(n, n + 1 + n % 2, **{column: str(n + 1)}) for n in range(40)]
    dropped, kept = _responses(content, rows, correct_only=True)
    assert dropped["solution_not_correct"]["count"] == 20
    assert [each.reference for each in kept] == [str(n + 1) for n in range(0, 40, 2)]


def test_a_second_set_has_the_truth_of_responses(content):
    truth = [{"problem": f"What is  {n} + 1?", "answer": str(n + 1)} for n in range(30)]
    write_jsonl(Path("data/raw/truth.jsonl"), truth)
    rows = [_response(n, n + 1 + n % 2) for n in range(40)]
    dropped, kept = _responses(content, rows, correct_only=True, truth_from=[_path("truth")])
    assert dropped["solution_not_correct"]["count"] == 15
    assert dropped["missing_field"]["count"] == 10
    assert len(kept) == 15


def test_a_response_is_no_truth(content):
    with pytest.raises(UserError, match=r"`reference`.*`truth_from:`"):
        _responses(content, [_response(1, 2)])


def test_a_response_without_a_marked_answer_is_dropped(content):
    rows = [_response(n, n + 1, answer=str(n + 1)) for n in range(9)]
    cut_off = {**rows[0], "response": " So it is 1 and we go on and on and"}
    dropped, kept = _responses(content, [*rows[1:], cut_off])
    assert dropped["no_answer"]["count"] == 1
    assert len(kept) == 8
