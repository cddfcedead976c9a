"""The Hub, offline: a repository in the layout of the Hub's cache, at its pinned revision."""

import dataclasses

import huggingface_hub.constants
import pytest
from datasets import Dataset

from lib.errors import UserError
from lib.problems.hub import HubSet
from lib.problems.known import KNOWN, KnownSet, fetch_known
from lib.problems.sources import Source, read_problems_of

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

GSM8K = HubSet(repo="openai/gsm8k", revision=REVISION, subset="main", split="train")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A Hub cache that holds one revision of one repository."""
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


def _read(at, **settings):
    return [problem for _, problem in read_problems_of(Source(at=at, **settings))]


@pytest.mark.parametrize(
    ("subset", "split", "count"),
    [("main", "train", 3), ("main", "test", 2), ("socratic", "train", 1)],
)
def test_a_pinned_revision_is_read_without_a_network(cache, subset, split, count):
    found = _read(HubSet(repo="openai/gsm8k", revision=REVISION, subset=subset, split=split))
    assert len(found) == count
    assert found[0].problem == f"{subset}/{split}: 0 + 0?"
    assert found[0].reference == "0"


def test_files_choose_what_is_fetched_and_read(cache):
    chosen = HubSet(repo="openai/gsm8k", revision=REVISION, files="main/test-*.parquet")
    assert len(_read(chosen)) == 2


def test_a_fault_in_a_hub_row_names_repository_revision_and_row(cache):
    rows = list(read_problems_of(Source(at=GSM8K, columns={"reference": "truth"})))
    assert rows[1][0].place == "openai/gsm8k@e53f0488 main/train:2"


def test_what_is_not_in_the_cache_says_how_to_use_a_path_instead(cache):
    absent = HubSet(repo="openai/gsm8k", revision="0" * 40, split="train")
    with pytest.raises(UserError) as raised:
        _read(absent)
    message = str(raised.value)
    assert "cannot be reached" in message
    assert "path: data/raw/" in message
    assert "\n" not in message


def test_a_hub_that_does_not_answer_says_the_same(cache, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="cannot be reached"):
        _read(HubSet(repo="openai/gsm8k", revision="0" * 40, split="train"))


@pytest.mark.parametrize(("subset", "split"), [("mian", "train"), ("main", "validation")])
def test_a_subset_or_split_that_is_not_there_is_an_error_about_params(cache, subset, split):
    with pytest.raises(UserError, match="check `subset`, `split` and `files`"):
        _read(HubSet(repo="openai/gsm8k", revision=REVISION, subset=subset, split=split))


def test_an_id_that_is_none_is_an_error_about_params(cache):
    with pytest.raises(UserError, match="check `hub` and `revision`"):
        _read(HubSet(repo="open ai/gsm8k", revision=REVISION))


def test_a_known_set_is_written_under_data_raw_as_its_rows_are(cache, tmp_path, monkeypatch):
    parts = tuple(dataclasses.replace(GSM8K, split=split) for split in ("train", "test"))
    monkeypatch.setitem(KNOWN, "gsm8k", KnownSet("table", parts))
    raw = tmp_path / "raw"
    path, count = fetch_known("gsm8k", raw)
    assert (path, count) == (raw / "gsm8k.jsonl", 5)
    found = [problem for _, problem in read_problems_of(Source(at=path), raw=raw)]
    assert [problem.reference for problem in found] == ["0", "2", "4", "0", "2"]
