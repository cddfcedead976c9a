"""Sets of the Hub are read offline, from the Hub's cache at a pinned revision."""

import gzip
import re

import huggingface_hub.constants
import pytest
from datasets import Dataset

from lib.core.errors import UserError
from lib.params.data import HubSource, KnownSource, hub_splits, known_sets
from lib.problems import benchmarks
from lib.problems.adapters import ADAPTERS
from lib.problems.benchmarks import fetch_known
from lib.problems.sources import edge_rows, read_rows, read_source

REVISION = "e53f048856ff4f594e959d75785d2c2d37b678ee"

CARD = """---
configs:
- config_name: main
  default: true
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: socratic/train-*
---
# A set in the form of GSM8K's repository, with synthetic rows
"""

GSM8K = HubSource(
    hub="openai/gsm8k",
    revision=REVISION,
    subset="main",
    split="train",
    files="",
    adapter="table",
    columns={},
    limit="all",
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Write a Hub cache with one revision of one repository."""
    snapshot = tmp_path / "datasets--openai--gsm8k" / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (snapshot / "README.md").write_text(CARD)
    for name, count in [("main/train", 3), ("main/test", 2), ("socratic/train", 1)]:
        path = snapshot / f"{name}-00000-of-00001.parquet"
        path.parent.mkdir(exist_ok=True)
        Dataset.from_list(
            [
                {"question": f"{name}: {n} + {n}?", "answer": f"Twice.\n#### {2 * n}"}
                for n in range(count)
            ]
        ).to_parquet(path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def _read(**changes):
    source = GSM8K.model_copy(update=changes)
    return [problem for _, problem in read_source(source)]


@pytest.mark.parametrize(
    ("changes", "count", "first"),
    [
        ({}, 3, "main/train: 0 + 0?"),
        ({"split": "test"}, 2, "main/test: 0 + 0?"),
        ({"subset": "socratic"}, 1, "socratic/train: 0 + 0?"),
        ({"subset": "", "files": "main/test-*.parquet"}, 2, "main/test: 0 + 0?"),
    ],
)
def test_a_pinned_revision_is_read_without_a_network(cache, changes, count, first):
    problems = _read(**changes)
    assert len(problems) == count
    assert (problems[0].problem, problems[0].reference) == (first, "0")
    edges = edge_rows(GSM8K.model_copy(update=changes))
    assert [problem for _, problem in edges] == problems


def test_a_fault_in_a_hub_row_names_repository_revision_and_row(cache):
    rows = list(read_source(GSM8K.model_copy(update={"columns": {"reference": "truth"}})))
    assert rows[1][0].place == "openai/gsm8k@e53f0488 main/train:2"


def test_a_hub_that_cannot_be_reached_is_one_line(cache, tmp_path, monkeypatch):
    for offline in (True, False):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(UserError, match=r"^[^\n]*cannot be reached[^\n]*`make fetch`[^\n]*$"):
            _read(revision="0" * 40)
        with pytest.raises(UserError, match=r"`./reckon benchmarks gsm8k`.*raw/gsm8k.jsonl here$"):
            fetch_known("gsm8k", tmp_path / "raw")


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "{above}/rows.jsonl",
            "../../../rows.jsonl",
            "main/../../../../rows.jsonl",
            "~/rows.jsonl",
        ),
        *(
            "file://{above}/rows.jsonl",
            "http://127.0.0.1:9/rows.jsonl",
            "hf://datasets/a/b/rows.jsonl",
        ),
        *("zip://rows.jsonl::{above}/rows.zip", "main/link.jsonl", "main/rows.jsonl.gz"),
    ],
)
@pytest.mark.parametrize("card", ["README.md", ".huggingface.yaml"])
def test_a_card_chooses_no_file_outside_of_its_repository(cache, pattern, card):
    snapshot = next(cache.glob("*/snapshots/*"))
    rows = cache / "rows.jsonl"
    rows.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    (snapshot / "main/link.jsonl").symlink_to(rows)
    with gzip.open(snapshot / "main/rows.jsonl.gz", "wb") as packed:
        packed.write(rows.read_bytes())
    pattern = pattern.format(above=cache)
    content = (
        f"configs:\n- config_name: main\n  data_files:\n  - {{split: train, path: '{pattern}'}}"
    )
    (snapshot / card).write_text(f"---\n{content}\n---\n" if card == "README.md" else content)
    with pytest.raises(UserError, match=r"openai/gsm8k@e53f0488 main/train: .*rows|link"):
        _read()


@pytest.mark.parametrize(
    "text", ["---\nconfigs: [\n---\n", "---\nconfigs: 3\n---\n", "---\n3\n---\n"]
)
def test_a_card_that_is_none_is_one_line(cache, text):
    (next(cache.glob("*/snapshots/*")) / "README.md").write_text(text)
    with pytest.raises(UserError, match=r"^openai/gsm8k[^\n]*$"):
        _read()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"subset": "mian"}, "check `subset`, `split` and `files`"),
        ({"split": "validation"}, "check `subset`, `split` and `files`"),
        ({"hub": "open--ai/gsm8k"}, "no such repository or revision"),
    ],
)
def test_a_missing_repository_subset_or_split_is_named(cache, changes, fault):
    with pytest.raises(UserError, match=fault):
        _read(**changes)


def test_a_known_set_is_written_under_data_raw_as_its_rows_are(cache, tmp_path, monkeypatch):
    parts = tuple(GSM8K.model_copy(update={"split": split}) for split in ("train", "test"))
    monkeypatch.setattr(benchmarks, "hub_splits", lambda source: parts)
    raw = tmp_path / "raw"
    path, count = fetch_known("gsm8k", raw)
    assert (path, count) == (raw / "gsm8k.jsonl", 5)
    problems = [problem for _, problem in read_rows(path, raw=raw)]
    assert [problem.reference for problem in problems] == ["0", "2", "4", "0", "2"]


@pytest.mark.parametrize("name", known_sets())
def test_a_known_set_is_pinned_and_its_adapter_exists(name):
    for part in hub_splits(KnownSource(known=name, limit="all")):
        assert part.adapter in ADAPTERS
        assert re.fullmatch(r"[0-9a-f]{40}", part.revision) or name == "open_math_reasoning_mini"


def test_an_unknown_set_is_answered_with_those_that_there_are(tmp_path):
    with pytest.raises(UserError, match=r"gsm9k.*gsm8k_train, gsm8k"):
        fetch_known("gsm9k", tmp_path)
