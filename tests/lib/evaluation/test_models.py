"""Any model on any benchmark, outside the DAG: the files of the stage, and one table."""

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from commands.evaluate import main
from lib.artifacts import read_json, write_json, write_jsonl
from lib.artifacts.problems import write_problems
from lib.core.errors import UserError
from lib.evaluation.models import apply_settings, labelled_models, measure_model
from lib.inference.external import ExternalModel
from lib.models.pretrained import load_tokenizer
from lib.problems.benchmarks import find_benchmark
from lib.prompts.saved import save_prompt
from tests.conftest import ROOT, read_jsonl
from tests.lib.evaluation.scripted import ScriptedEngine
from tests.lib.export.conftest import make_adapter

GSM8K = [
    {"question": f"Ann has {n} pens and buys 2. How many?", "answer": f"{n}+2\n#### {n + 2}"}
    for n in (1, 3, 5)
]
MMLU = {
    "abstract_algebra_test.csv": "What is 1 + 1?,1,2,3,4,B\n",
    "college_mathematics_test.csv": "What is 2 * 3?,6,5,4,3,A\nWhat is 3 - 1?,0,1,2,4,C\n",
}
ALPACA = [
    {"dataset": "koala", "instruction": "Write a line.", "output": "x", "generator": "davinci"},
    {"dataset": "vicuna", "instruction": "Name a city.", "output": "y", "generator": "davinci"},
]


@pytest.fixture(scope="module")
def sets_folder(tmp_path_factory):
    """Write small sets in the columns and files of the public sets."""
    folder = tmp_path_factory.mktemp("sets")
    write_jsonl(folder / "gsm8k.jsonl", GSM8K)
    write_json(folder / "alpaca.json", ALPACA)
    (folder / "mmlu").mkdir()
    for name, rows in MMLU.items():
        (folder / "mmlu" / name).write_text(rows)
    return folder


@pytest.fixture(scope="module")
def models(base, smoke, tmp_path_factory):
    """Write `base`, and its adapter `grpo`, as a run of the pipeline leaves them."""
    folder = tmp_path_factory.mktemp("pipeline")
    shutil.copytree(base, folder / "base")
    save_prompt(folder / "base", system="", rendering=smoke.prompt.rendering)
    make_adapter(base, folder / "grpo", smoke)
    return folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["--params", str(ROOT / "params.yaml"), *arguments])


@pytest.fixture(scope="module")
def out(models, sets_folder, tmp_path_factory):
    """Evaluate two models; return the folder of results and the command's output."""
    folder = tmp_path_factory.mktemp("out")
    with contextlib.chdir(tmp_path_factory.mktemp("cwd")):
        ran = run(
            f"{models}/base,{models}/grpo",
            f"--benchmarks=gsm8k={sets_folder}/gsm8k.jsonl,mmlu={sets_folder}/mmlu,"
            f"alpaca_eval={sets_folder}/alpaca.json",
            "--set=max_new_tokens=4 num_samples=2 mmlu.num_samples=0 alpaca_eval.num_samples=0",
            f"--out={folder}",
        )
    assert ran.exit_code == 0, ran.output
    return folder, ran.output


def test_each_model_gets_the_files_of_the_stage(out):
    folder, _ = out
    for name in ("base", "grpo"):
        for kind in ("completions", "graded"):
            rows = read_jsonl(folder / kind / f"{name}.jsonl")
            # gsm8k greedy and twice sampled, mmlu greedy, alpaca_eval greedy.
            assert len(rows) == 3 + 3 * 2 + 3 + 2
            assert {row["checkpoint"] for row in rows} == {name}
        metrics = read_json(folder / f"metrics/{name}.json")
        assert metrics["gsm8k"]["sampled"]["num_samples"] == 2
        assert list(metrics["mmlu"]) == ["greedy"]


def test_alpaca_eval_gets_the_json_that_it_reads(out):
    outputs = read_json(out[0] / "alpaca_eval/grpo.json")
    assert all("output" in row for row in outputs)
    generated = [{**row, "output": "", "generator": "grpo"} for row in ALPACA]
    assert [{**row, "output": ""} for row in outputs] == generated


def test_provenance_holds_what_it_takes_to_get_the_numbers_again(out):
    noted = read_json(out[0] / "provenance/grpo.json")
    assert noted["prompt"]["format"] == "working_out"
    assert noted["sampling"]["gsm8k"]["sampled"]["num_completions"] == 2
    assert set(noted["sampling"]["mmlu"]) == {"greedy"}
    assert {"model", "base", "gsm8k", "mmlu", "alpaca_eval"} == set(noted["inputs"])
    assert noted["engine"]["name"] == "transformers"
    assert len(noted["verifier"]["code"]) == len(noted["prompt"]["template"]) == 16


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["--set=temprature=1"], "evaluate.temprature"),
        (["--set=aime24.top_p=1.0"], "aime24"),
        (["--set=seed=x"], "seed"),
        (["--set=seed=-1"], "seed"),
        (["--set=seed=true"], "seed"),
        (["--prompt-format=xlm"], "xlm"),
        (["--benchmarks=gsmk"], "gsm8k"),
    ],
)
def test_a_mistake_is_one_line(options, key, models, sets_folder, tmp_path):
    right = [f"{models}/base", f"--benchmarks={sets_folder}/gsm8k.jsonl"]
    ran = run(*right, *options, f"--out={tmp_path}")
    assert ran.exit_code == 1
    assert ran.output.startswith("Error: ") and key in ran.output


def test_the_base_is_measured_in_another_format_by_name(models, sets, tmp_path, monkeypatch):
    """The command of docs/evaluate.md works in the folder of a finished run."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(models / "base", "data/models/base")
    write_problems(Path("data/problems/benchmarks/held_out.jsonl"), sets.benchmarks["held_out"][:3])
    options = ("--prompt-format=xml", "--benchmarks=held_out", "--set=num_samples=0")
    ran = run("base", *options)
    assert ran.exit_code == 0, ran.output
    noted = read_json(Path("data/evaluations/provenance/base.xml.json"))
    assert noted["prompt"]["format"] == "xml"
    prompts = read_json(Path("data/evaluations/prompts/base.xml.json"))["held_out"]
    first = sets.benchmarks["held_out"][0]
    assert prompts[first.id] == f"{first.problem}\n"


def test_models_of_one_name_or_two_formats_are_told_apart(models, tmp_path):
    shutil.copytree(models / "base", tmp_path / "other/base")
    settings = {"system": "format", "base": None}
    ids = [f"{models}/base", f"{tmp_path}/other/base"]
    assert list(labelled_models(ids, formats=[], **settings)) == ["base", "other-base"]
    both = labelled_models(ids[:1], formats=["boxed/own", "xml/chatml"], **settings)
    assert list(both) == ["base.boxed-own", "base.xml-chatml"]
    boxed = both["base.boxed-own"]
    assert boxed.system == boxed.prompt_format.instructions != ""


def test_the_working_folder_is_a_model_by_its_name(models, monkeypatch):
    monkeypatch.chdir(models / "base")
    assert list(labelled_models(["."], formats=[], system="format", base=None)) == ["base"]


def test_settings_hold_for_all_benchmarks_or_for_one(smoke):
    text = "temperature=0.6 aime24.num_samples=16 seed=3 engine=transformers"
    section = smoke.evaluate.model_dump(mode="json")
    evaluate, seed = apply_settings(section, text, benchmarks=["gsm8k", "aime24"])
    assert seed == 3
    gsm8k, aime24 = evaluate.decoding_of("gsm8k"), evaluate.decoding_of("aime24")
    assert (gsm8k.num_samples, gsm8k.temperature) == (smoke.evaluate.num_samples, 0.6)
    assert (aime24.num_samples, aime24.temperature) == (16, 0.6)


@pytest.mark.parametrize(
    ("word", "modes"),
    [
        ("aime24.num_samples=16", (True, 0, 1.0)),  # it has the common temperature
        ("aime24.temperature=0.6", (False, 8, 0.6)),
    ],
)
def test_a_temperature_of_0_holds_where_no_other_is_set(word, modes, smoke):
    section = smoke.evaluate.model_dump(mode="json")
    section |= {"greedy": False, "num_samples": 8, "temperature": 1.0}
    evaluate, _ = apply_settings(section, f"temperature=0 {word}", benchmarks=["gsm8k", "aime24"])
    gsm8k, aime24 = evaluate.decoding_of("gsm8k"), evaluate.decoding_of("aime24")
    assert (gsm8k.greedy, gsm8k.num_samples) == (True, 0)
    assert (aime24.greedy, aime24.num_samples, aime24.temperature) == modes


def test_settings_by_commas_are_rows_of_one_table(models, sets_folder, tmp_path):
    ran = run(
        f"{models}/base",
        f"--benchmarks={sets_folder}/gsm8k.jsonl",
        "--set=temperature=0.0,0.6,1.0 top_p=0.5,1.0 num_samples=2 max_new_tokens=2",
        f"--out={tmp_path}",
    )
    assert ran.exit_code == 0, ran.output
    table = ran.output.split("\n\n")[1].splitlines()
    assert [line.split()[0] for line in table[2:]] == [
        f"base.temperature={t}.top_p={p}" for t in ("0.0", "0.6", "1.0") for p in ("0.5", "1.0")
    ]
    modes = {path.stem: read_json(path)["gsm8k"] for path in (tmp_path / "metrics").iterdir()}
    assert list(modes["base.temperature=0.0.top_p=0.5"]) == ["greedy"]
    assert "sampled" in modes["base.temperature=1.0.top_p=1.0"]


def test_a_stopped_run_with_other_positions_starts_anew(models, smoke, tmp_path, monkeypatch):
    """A stored chunk with fewer problems would hide those whose prompts fit only now."""
    monkeypatch.chdir(tmp_path)
    questions = ["What is 1 + 2?", "What is 1 + 3?", "What is 1 + 4? " * 20]
    path = tmp_path / "sums.jsonl"
    write_jsonl(path, [{"question": each, "answer": "3"} for each in questions])
    (model,) = labelled_models([f"{models}/base"], formats=[], system=None, base=None).values()
    changes = {"greedy": True, "num_samples": 2, "batch_size": 8, "benchmarks": ("sums",)}

    def measured(positions: int, last: int) -> dict[str, Any]:
        engine = ScriptedEngine(
            load_tokenizer(models / "base"),
            {"1 +": ["3", "3"]},
            last=last,
            positions=positions,
        )
        engine.close = lambda: None
        monkeypatch.setattr(ExternalModel, "open", lambda *_, **__: engine)
        params = smoke.replaced(evaluate=changes)
        sets = [find_benchmark(str(path))]
        return measure_model(model, label="base", sets=sets, params=params, limit=0, out=tmp_path)

    with pytest.raises(UserError, match="interrupted"):
        measured(60, last=1)
    assert {mode: each["n"] for mode, each in measured(2048, last=-1)["sums"].items()} == {
        "greedy": 3,
        "sampled": 3,
    }


def test_a_limit_takes_the_same_problems_whatever_their_order(sets_folder, tmp_path):
    path = sets_folder / "gsm8k.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    other = tmp_path / "gsm8k.jsonl"
    other.write_text("".join([*reversed(lines), lines[0]]))
    first, second = (find_benchmark(f"gsm8k={file}", limit=2) for file in (path, other))
    assert {p.id for p in first.problems} == {p.id for p in second.problems}
    assert (len(first.problems), second.num_repeated) == (2, 1)


def test_a_benchmark_of_the_pipeline_comes_before_a_fetched_one(sets_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fetched, prepared = Path("data/raw/gsm8k.jsonl"), Path("data/problems/benchmarks/gsm8k.jsonl")
    with pytest.raises(UserError, match="dvc repro prepare"):
        find_benchmark("held_out")
    for file in (fetched, prepared):
        file.parent.mkdir(parents=True)
    shutil.copy(sets_folder / "gsm8k.jsonl", fetched)
    assert find_benchmark("gsm8k").path == fetched
    shutil.copy(fetched, prepared)
    with pytest.raises(UserError, match="not a problem record"):
        find_benchmark("gsm8k")


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ("data/models/sft", "data/models/sft is missing: no run made it yet; run `dvc repro sft`"),
        ("base", "data/models/base is missing: no run made it yet; run `dvc repro prepare`"),
        ("{base}", "no benchmark `held_out` in data/problems/benchmarks, where `dvc repro"),
        ("no/such/model", "no model at no/such/model; expected a folder"),
    ],
)
def test_in_a_fresh_clone_the_first_thing_that_is_missing_is_named(
    model, fault, base, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    ran = run(model.format(base=base), "--benchmarks=held_out")
    assert ran.output.startswith(f"Error: {fault}")
    assert (ran.exit_code, len(ran.output.splitlines())) == (1, 1)


@pytest.mark.parametrize("word", ["temperature=[", "temperature={", "temperature='", "x.seed=@"])
def test_a_setting_that_is_no_yaml_is_one_line(word, smoke):
    with pytest.raises(UserError, match=r"SET: .* is not YAML") as raised:
        apply_settings(smoke.evaluate.model_dump(mode="json"), word, benchmarks=["x"])
    assert len(raised.value.message.splitlines()) == 1
