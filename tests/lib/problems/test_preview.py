"""The first rows of a file are shown as they would be read, and the file becomes a source."""

import shutil
from pathlib import Path

import pytest

from lib.artifacts import write_jsonl
from lib.core.errors import UserError
from lib.params import compose_preset, load_params
from lib.problems.preview import preview, write_source
from tests.lib.problems.test_columns import CHAT
from tests.pipeline.source_rows import ROWS, row_of

FILE = Path("data/raw/mine.jsonl")


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(compose_preset("smoke"))


# A response is not its own truth.
@pytest.mark.parametrize("name", sorted({*ROWS} - {"math_jsonl"}))
def test_the_rows_of_public_sets_are_read_by_their_adapter(sets, name):
    write_jsonl(FILE, [row_of(name, sets.sft[0])])
    shown = preview(FILE)
    adapters = ("dapo", "open_math_reasoning", "mmlu", "olympiadbench")
    known = [each for each in adapters if name.startswith(each)]
    assert shown.source.adapter == (known[0] if known else "table")
    assert sets.sft[0].problem in shown.problems[0].problem
    assert shown.problems[0].reference in (sets.sft[0].reference, "A", f"${sets.sft[0].reference}$")


def test_what_would_be_dropped_is_counted_with_an_example():
    write_jsonl(FILE, [{"messages": CHAT}, {"messages": CHAT[:1]}])
    text = "\n".join(preview(FILE).lines())
    assert "would be dropped: 1 " in text and "mine.jsonl:2" in text


def test_a_file_becomes_a_source_with_every_key():
    write_jsonl(FILE, [{"messages": CHAT}])
    shutil.copy(FILE, "data/raw/test.jsonl")
    write_source(preview(FILE).source, sets=["sft", "grpo"])
    write_source(preview(Path("data/raw/test.jsonl")).source, sets=[], benchmark="mine")
    params = load_params()
    (sft,), (grpo,) = params.prepare.sft.sources, params.prepare.grpo.sources
    assert sft == grpo
    assert sft.source.columns == {"problem": "messages", "solution": "messages"}
    assert params.prepare.benchmarks[-1].source.path == "data/raw/test.jsonl"
    assert params.evaluate.benchmarks[-1] == "mine"
    assert params.prepare.contamination_ngram == 8
    text = Path("params.yaml").read_text()
    assert text.count("limit: all") == 3


def test_a_source_that_params_refuse_leaves_them_as_they_are():
    before = Path("params.yaml").read_text()
    write_jsonl(FILE, [{"instruction": "Name a colour.", "output": "Red", "generator": "me"}])
    with pytest.raises(UserError, match="without answers"):
        write_source(preview(FILE).source, sets=["sft"])
    assert Path("params.yaml").read_text() == before


def test_omitted_keys_of_a_path_source_are_written_out(tmp_path):
    overlay = tmp_path / "own.yaml"
    sources = ("held_out", "{path: data/raw/a.csv}"), ("harder", "{generator: harder}")
    entries = "".join(f"\n  - name: {name}\n    source: {source}" for name, source in sources)
    truth = "\n  sft: {truth_from: [{path: data/raw/b.csv}]}\n"
    overlay.write_text(f"prepare:\n  benchmarks:{entries}{truth}")
    text = compose_preset(str(overlay))
    for line in ("adapter: table", "columns: {}", "limit: all"):
        assert text.count(line) == 2
