from hypothesis import given, settings
from hypothesis import strategies as st

from lib.artifacts.problems import Problem, read_problems, write_problems
from lib.problems.store import Drops, join, write_table
from tests.lib.problems.conftest import texts

TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
PROBLEMS = st.lists(
    st.builds(
        Problem.create,
        problem=TEXT,
        reference=TEXT,
        solution=TEXT,
        subject=TEXT,
        level=st.integers(0, 9) | TEXT,
        tags=st.lists(TEXT, max_size=2).map(tuple),
    ),
    max_size=5,
)


@settings(max_examples=30)
@given(problems=PROBLEMS)
def test_a_table_and_json_lines_give_back_what_was_written(tmp_path_factory, problems):
    folder = tmp_path_factory.mktemp("store")
    assert list(write_table(folder / "t.arrow", problems, Drops())) == problems
    write_problems(folder / "t.jsonl", problems)
    assert list(read_problems(folder / "t.jsonl")) == problems


def test_selected_rows_keep_the_requested_order_and_source(table_of):
    joined = join([table_of(["a", "b"], source=0), table_of(["c", "d"], source=1)])
    picked = joined.select([3, 0])
    assert texts(picked) == ["d", "a"]
    assert list(picked.column("source")) == [1, 0]


def test_writing_a_file_anew_leaves_tables_of_the_old_one_whole(tmp_path):
    path = tmp_path / "t.arrow"
    old = write_table(path, [Problem.create(problem="old " * 100, reference="1")], Drops())
    write_table(path, [], Drops())
    assert texts(old) == ["old " * 100]
