"""A killed run keeps whole chunks, and other settings never reuse them."""

import contextlib
import sqlite3

import pytest

from lib.core.errors import UserError
from lib.evaluation.completions import rows_fingerprint, scratch_of, store_chunk
from tests.conftest import run_python


def test_a_chunk_that_was_not_stored_whole_is_not_there(tmp_path):
    def connect():
        return contextlib.closing(sqlite3.connect(tmp_path / "rows.sqlite"))

    with connect() as table:
        table.execute("CREATE TABLE rows (task INTEGER, problem INTEGER, sample INTEGER, row TEXT)")
        store_chunk(table, [(0, 3, 0, "{}"), (0, 1, 0, "{}")])
        with pytest.raises(sqlite3.Error):
            store_chunk(table, [(0, 2, 0, "{}"), (0, 4)])
    with connect() as table:
        assert table.execute("SELECT problem FROM rows").fetchall() == [(3,), (1,)]


def test_settings_and_inputs_each_name_another_folder(tmp_path):
    def fingerprint(weights="weights", temperature=1.0):
        (tmp_path / "model").write_text(weights)
        return rows_fingerprint({"temperature": temperature}, inputs={"model": tmp_path / "model"})

    assert fingerprint() == fingerprint()
    assert len({fingerprint(), fingerprint(temperature=0.6), fingerprint("other weights")}) == 3


def test_a_finished_run_leaves_nothing_and_a_failed_one_stays(tmp_path):
    with (
        pytest.raises(UserError, match="the same command resumes"),
        scratch_of("a", root=tmp_path) as folder,
    ):
        (folder / "rows").write_text("1")
        raise KeyboardInterrupt
    with scratch_of("a", root=tmp_path) as folder:
        assert (folder / "rows").read_text() == "1"
    assert not folder.exists()


def test_two_runs_of_the_same_do_not_write_into_each_other(tmp_path):
    code = "import pathlib; from lib.core.process import alone;"
    with scratch_of("a", root=tmp_path) as folder, scratch_of("b", root=tmp_path):
        code += f"alone(pathlib.Path({str(folder / 'lock')!r}), what='it').__enter__()"
        assert "already running" in run_python(code).stderr
    assert not (tmp_path / "a").exists()
