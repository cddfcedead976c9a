"""A killed run's rows are cut to whole chunks, and other settings never reuse them."""

import json
from pathlib import Path

import pytest

from lib.evaluation.completions import Stream, rows_fingerprint, scratch_of
from tests.lib.training.runs import on_ranks


def chunk(*places: int) -> list[dict[str, int]]:
    return [{"place": place, "sample": 0, "value": 10 * place} for place in places]


@pytest.fixture
def path(tmp_path):
    stream = Stream(tmp_path / "a.greedy.jsonl", [2, 2, 1])
    stream.append(chunk(3, 1))
    stream.append(chunk(0, 4))
    return stream.path


def test_rows_come_sorted_without_what_only_the_stream_needs(path):
    stream = Stream(path, [2, 2, 1])
    stream.append(chunk(2))
    assert list(stream.rows()) == [{"sample": 0, "value": value} for value in (0, 10, 20, 30, 40)]


@pytest.mark.parametrize("left", range(1, 4))
def test_a_chunk_that_is_not_whole_is_generated_again(path, left):
    """The kill comes in the third chunk of four rows, in the middle of a line."""
    lines = [json.dumps(row) + "\n" for row in chunk(5, 6, 7, 8)]
    whole = path.read_bytes()
    with path.open("a") as file:
        file.write("".join(lines[: left - 1]) + lines[left - 1][:9])
    stream = Stream(path, [2, 2, 4])
    assert (stream.num_done, stream.num_rows) == (2, 4)
    assert path.read_bytes() == whole


def test_a_line_without_its_end_is_no_line(path):
    path.write_bytes(path.read_bytes()[:-1])
    assert Stream(path, [2, 2, 1]).num_done == 1


def test_settings_and_inputs_each_name_another_folder(tmp_path):
    model = tmp_path / "model"
    model.write_text("weights")
    first = rows_fingerprint({"temperature": 1.0}, inputs={"model": model})
    assert rows_fingerprint({"temperature": 1.0}, inputs={"model": model}) == first
    assert rows_fingerprint({"temperature": 0.6}, inputs={"model": model}) != first
    model.write_text("other weights")
    assert rows_fingerprint({"temperature": 1.0}, inputs={"model": model}) != first


def test_a_finished_run_leaves_nothing_and_a_failed_one_stays(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt), scratch_of("a", root=tmp_path) as folder:
        (folder / "rows").write_text("1")
        raise KeyboardInterrupt
    with scratch_of("a", root=tmp_path) as folder:
        assert (folder / "rows").read_text() == "1"
    assert not folder.exists()
    assert "the same command resumes" in capsys.readouterr().err


def enter(folder: Path) -> None:
    scratch_of("a", root=folder).__enter__()


def test_two_runs_of_the_same_do_not_write_into_each_other(tmp_path):
    with scratch_of("a", root=tmp_path):
        other = on_ranks(1, enter, tmp_path, log=tmp_path / "log")
    assert "already running" in other.stdout
    assert not (tmp_path / "a").exists()


def test_runs_of_two_fingerprints_have_folders_of_their_own(tmp_path):
    with scratch_of("a", root=tmp_path) as first, scratch_of("b", root=tmp_path) as second:
        assert (first, second) == (tmp_path / "a", tmp_path / "b")
        (first / "rows").touch()
    assert not list(tmp_path.iterdir())
