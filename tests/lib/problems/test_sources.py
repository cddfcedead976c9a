"""Files under data/raw give the same problems in every form; other files are refused."""

import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict

from lib.artifacts import write_jsonl
from lib.artifacts.problems import Problem, write_problems
from lib.core.errors import UserError
from lib.params.data import PathSource
from lib.problems.benchmarks import find_benchmark
from lib.problems.rows import RowFault
from lib.problems.sources import edge_rows, read_rows

ROWS = [
    {"question": f"What is {n} + {n}?", "answer": f"Twice {n}.\n#### {2 * n}"} for n in range(1, 6)
]


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "data" / "raw"
    folder.mkdir(parents=True)
    return folder


def _read(raw, name, **settings):
    return [problem for _, problem in read_rows(raw / name, raw=raw, **settings)]


def _write(path):
    rows = Dataset.from_list(ROWS)
    match path.suffix:
        case ".jsonl" | ".json":
            rows.to_json(path, lines=path.suffix == ".jsonl")
        case ".csv":
            rows.to_csv(path)
        case ".parquet":
            rows.to_parquet(path)
        case _:
            rows.save_to_disk(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "arrow"])
def test_every_form_of_file_gives_the_same_problems(raw, name):
    _write(raw / name)
    problems = _read(raw, name)
    assert [problem.reference for problem in problems] == ["2", "4", "6", "8", "10"]
    assert (problems[2].problem, problems[2].solution) == ("What is 3 + 3?", "Twice 3.")
    # `check` reads both ends of a file, and only the first rows of a saved folder.
    source = PathSource.model_construct(path=str(raw / name))
    edges = [problem for _, problem in edge_rows(source, raw=raw)]
    assert edges == (problems[:3] if name == "arrow" else problems)


def test_a_folder_is_its_files_in_order_of_name(raw):
    for name in ("b.csv", "a.jsonl"):
        _write(raw / name)
    (raw / "notes.txt").write_text("no rows")
    places = [row.place for row, _ in read_rows(raw, raw=raw)]
    assert [place.rsplit("/", 1)[1][:5] for place in places] == ["a.jso"] * 5 + ["b.csv"] * 5


def test_a_hidden_file_is_read_only_if_it_is_named(raw):
    _write(raw / ".mine.jsonl")
    assert list(read_rows(raw / ".mine.jsonl", raw=raw))
    (raw / "set/.cache").mkdir(parents=True)
    _write(raw / "set/.cache/rows.jsonl")
    with pytest.raises(UserError, match=r"expected .*\.jsonl"):
        list(read_rows(raw / "set", raw=raw))


def test_a_path_elsewhere_is_refused_with_its_import(raw, tmp_path):
    _write(tmp_path / "mine.jsonl")
    (raw / "link.jsonl").symlink_to(tmp_path / "mine.jsonl")
    for path in (tmp_path / "mine.jsonl", raw / "link.jsonl", raw):
        with pytest.raises(UserError, match=r"dvc import-url .*(mine|link).jsonl .*raw/\1.jsonl"):
            list(read_rows(path, raw=raw))
    (raw / "link.jsonl").unlink()
    (raw / "link.jsonl").symlink_to("link.jsonl")
    for path in (raw / "link.jsonl", raw):
        with pytest.raises(UserError, match=r"link.jsonl is a broken link"):
            list(read_rows(path, raw=raw))


def test_a_link_into_dvcs_cache_is_read(raw, tmp_path):
    cached = tmp_path / "shared/files/md5/0a" / ("1b" * 15)
    cached.parent.mkdir(parents=True)
    _write(raw / "rows.jsonl")
    (raw / "rows.jsonl").rename(cached)
    (raw / "rows.jsonl").symlink_to(cached)
    assert len(_read(raw, "rows.jsonl")) == len(_read(raw, ".")) == len(ROWS)


@pytest.mark.parametrize(
    ("name", "message"),
    [("none.jsonl", r"none\.jsonl"), ("notes.txt", r"notes\.txt: .*\.jsonl")],
)
def test_what_cannot_be_read_is_refused_with_what_is_expected(raw, name, message):
    (raw / "notes.txt").write_text("no rows")
    with pytest.raises(UserError, match=message):
        _read(raw, name)


@pytest.mark.parametrize("name", ["a.parquet", "arrow"])
@pytest.mark.parametrize("kept", [0, 4, 100])
def test_a_truncated_file_is_one_fault_that_names_it(raw, name, kept):
    path = raw / name
    _write(path)
    (data,) = path.glob("*.arrow") if path.is_dir() else [path]
    data.write_bytes(data.read_bytes()[:kept])
    ((row, fault),) = read_rows(path, raw=raw)
    assert isinstance(fault, RowFault)
    assert (row.place, fault.reason) == (str(path), "unreadable")


def test_bad_bytes_in_a_parquet_cell_are_that_rows_fault(raw):
    offsets = pyarrow.array([0, 2, 4, 6], pyarrow.int32()).buffers()[1]
    cells = pyarrow.Array.from_buffers(
        pyarrow.string(), 3, [None, offsets, pyarrow.py_buffer(b"1?\xff\xfe3?")]
    )
    table = pyarrow.table({"question": cells, "answer": ["1", "2", "3"]})
    pyarrow.parquet.write_table(table, raw / "a.parquet")
    rows = _read(raw, "a.parquet")
    assert [getattr(row, "reason", "good") for row in rows] == ["good", "bad_utf8", "good"]
    assert rows[1].field == "question"


@pytest.mark.parametrize("above", ["", "eval-suite/"])
def test_splits_in_one_folder_are_told_apart(raw, above):
    (raw / above).mkdir(exist_ok=True)
    for name in ("train-0.parquet", "train-1.parquet", "test-0.parquet"):
        _write(raw / f"{above}{name}")
    with pytest.raises(UserError, match=r"test, train.*`split:`"):
        _read(raw, "")
    assert (len(_read(raw, "", split="train")), len(_read(raw, "", split="test"))) == (10, 5)
    with pytest.raises(UserError, match=r"`dev`.*test, train"):
        _read(raw, "", split="dev")


def test_one_split_or_none_needs_no_name(raw):
    for name in ("own/algebra_test.csv", "own/geometry_test.csv", "two/trains.csv", "two/b.csv"):
        (raw / name).parent.mkdir(exist_ok=True)
        _write(raw / name)
    assert (len(_read(raw, "own")), len(_read(raw, "two"))) == (10, 10)


def test_a_saved_dictionary_of_splits_needs_a_split(raw):
    rows = Dataset.from_list(ROWS)
    DatasetDict({"train": rows, "test": rows}).save_to_disk(raw / "both")
    with pytest.raises(UserError, match=r"train, test.*`split:`"):
        _read(raw, "both")
    assert len(_read(raw, "both", split="train")) == 5


def test_a_benchmark_is_read_by_its_adapter_unless_prepare_wrote_it(raw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(raw / "mine.jsonl", ROWS)
    mine = find_benchmark("mmlu_like=data/raw/mine.jsonl")
    assert (mine.adapter, [each.reference for each in mine.problems][:2]) == ("table", ["2", "4"])
    problem = Problem.create(problem="5 + 7?", reference="12", level=1, tags=("bare",))
    write_problems(tmp_path / "mmlu.jsonl", [problem])
    assert find_benchmark(f"{tmp_path}/mmlu.jsonl").problems == (problem,)
    # There, any row that is no record is a fault of `prepare`, and is not converted.
    write_jsonl(tmp_path / "data/problems/benchmarks/gsm8k.jsonl", ROWS)
    with pytest.raises(UserError, match=r"gsm8k\.jsonl:1: not a problem record"):
        find_benchmark("gsm8k")
