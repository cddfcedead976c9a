import pytest

from lib.artifacts.completions import read_graded
from lib.core.errors import UserError
from lib.models.pretrained import load_tokenizer
from lib.report.inputs import read_curve, rendered_prompts
from tests.lib.report.runs import read, write_run


def test_a_skipped_phase_has_an_empty_curve(tmp_path):
    run = read(write_run(tmp_path, problems=4, skipped=("grpo",)))
    assert run.skipped == {"grpo"} and run.curves["grpo"] == {}


@pytest.mark.parametrize(
    "name", ["graded/sft.json", "graded/sft.jsonl", "base/chat_template.jinja"]
)
def test_a_missing_file_is_named_with_what_writes_it(tmp_path, name):
    folder = write_run(tmp_path, problems=2)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=rf"{name.split('/')[0]}.*dvc repro"):
        read(folder)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("epoch,loss\n1,2\n", "step"),
        ("step,loss\n1,low\n", "curve.csv:2"),
        ("step,loss\n1,0.5,9\n", "curve.csv:2"),
    ],
)
def test_a_damaged_curve_is_named_with_its_row(tmp_path, text, key):
    path = tmp_path / "curve.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=key):
        read_curve(path)


def test_files_of_an_older_run_with_dpo_are_left_out(tmp_path):
    folder = write_run(tmp_path)
    for name in ("provenance", "metrics"):
        (folder / name / "dpo.json").write_text('{"skipped": true}', encoding="utf-8")
    (folder / "curves" / "dpo.csv").write_text("step,loss\n1,0.7\n", encoding="utf-8")
    run = read(folder)
    assert "dpo" not in {*run.curves, *run.provenance, *run.stage_metrics, *run.skipped}


def test_a_prompt_is_what_the_base_model_s_tokenizer_makes(base, tmp_path):
    rows = list(read_graded(write_run(tmp_path, problems=4) / "graded" / "grpo.jsonl"))
    prompts = rendered_prompts(rows, base=base, system="Think.")
    tokenizer = load_tokenizer(base)
    for row in rows:
        turns = {"system": "Think.", "user": row.problem}.items()
        messages = [{"role": role, "content": text} for role, text in turns]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert prompts[row.benchmark, row.problem_id] == text
