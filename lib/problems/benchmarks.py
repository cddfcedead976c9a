"""Benchmarks by name or path, for `./reckon evaluate`, and known sets fetched into data/raw."""

import json
import re
from pathlib import Path

from lib.artifacts import json_lines, replacing
from lib.artifacts.problems import BenchmarkSet, Problem, read_problems
from lib.core.errors import UserError
from lib.models.hub import dataset_repository, look_up
from lib.params.data import RAW, KnownSource, hub_splits, known_sets
from lib.params.section import suggest
from lib.problems.rows import RowFault
from lib.problems.sources import hub_rows, read_rows

BENCHMARKS_FOLDER = Path("data/problems/benchmarks")


def find_benchmark(query: str, *, limit: int = 0) -> BenchmarkSet:
    """Read the benchmark that `query` names.

    Args:
        query: a benchmark that `prepare` wrote ("held_out"), a known set that `./reckon benchmarks`
            fetched ("gsm8k"), a path, or `name=path` for a copy of a known set elsewhere.
        limit: number of problems, the same ones each time; 0 for all.

    Raises:
        UserError: no such set (with the command that gets it), or a row without a problem.
    """
    name, path = _locate(query)
    # Files that `prepare` wrote, and copies of them, hold `Problem` records; the rows of other
    # files are converted.
    if path.parent == BENCHMARKS_FOLDER or _holds_records(path):
        adapter, problems = "", list(read_problems(path))
    else:
        adapter, problems = adapter_of(name), []
        # Files are read only below `raw`. "/" allows any path: no stage depends on this file.
        for row, problem in read_rows(path, adapter=adapter, raw=Path("/")):
            if isinstance(problem, RowFault):
                raise UserError(f"{row.place}: {problem}; mend or remove the row")
            problems.append(problem)
    # Id, a content hash → first problem with it.
    unique: dict[str, Problem] = {}
    for problem in problems:
        unique.setdefault(problem.id, problem)
    # The smallest hashes are a random sample, and the same one each time; [:None] is all of them.
    selected_ids = set(sorted(unique)[: limit or None])
    return BenchmarkSet(
        name=name,
        path=path,
        adapter=adapter,
        problems=tuple(problem for problem in unique.values() if problem.id in selected_ids),
        num_repeated=len(problems) - len(unique),
    )


def _holds_records(path: Path) -> bool:
    """Return True if the first row of a JSONL file has exactly the fields of a `Problem`."""
    first = next(json_lines(path), None) if path.suffix == ".jsonl" else None
    row = first.value if first else None
    return isinstance(row, dict) and row.keys() == Problem.__dataclass_fields__.keys()


def _locate(query: str) -> tuple[str, Path]:
    """Return the name and the path of the benchmark in `query`.

        "gsm8k"               ->  "gsm8k", the set's file under data/problems/benchmarks or data/raw
        "copies/My set.jsonl" ->  "my_set", that path
        "gsm8k=copies/x.csv"  ->  "gsm8k", that path

    Raises:
        UserError: no such set.
    """
    # `equals` is '' if there is no "=" in the query; `name` is then the whole query.
    name, equals, after = query.partition("=")
    path = Path(after if equals else query)
    # A path is known by "=", a suffix or a slash; any other query is a name.
    if equals or path.suffix or len(path.parts) > 1:
        if not path.exists():
            raise UserError(f"benchmark `{query}`: {path} is missing")
        # Outputs are named after the benchmark, so its name has to be valid in a file name.
        slug = re.sub(r"[^a-z0-9_-]+", "_", (name if equals else path.stem).lower())
        return slug.strip("_-") or "benchmark", path
    # The pipeline's own set comes before a fetched one of the same name.
    fetched = RAW / f"{name}.jsonl"
    for file in (BENCHMARKS_FOLDER / fetched.name, fetched):
        if file.is_file():
            return name, file
    if name in known_sets():
        raise UserError(
            f"benchmark `{name}`: {fetched} is missing; `./reckon benchmarks {name}` fetches it "
            f"from the Hub, and --benchmarks {name}=PATH reads a copy that is here already"
        )
    own = sorted(path.stem for path in BENCHMARKS_FOLDER.glob("*.jsonl"))
    raise UserError(
        f"no benchmark `{name}` in {BENCHMARKS_FOLDER}, where `dvc repro prepare` writes the sets "
        f"of params.yaml; any path will do too, {suggest(name, [*own, *known_sets()])}"
    )


def adapter_of(name: str) -> str:
    """Return the adapter of a public set, `table` for any other."""
    adapter: str = known_sets().get(name, {}).get("adapter", "table")
    return adapter


def fetch_known(name: str, folder: Path) -> tuple[Path, int]:
    """Write a known set's rows, as the Hub has them, to `<folder>/<name>.jsonl`.

    Returns:
        The path, and the number of rows.

    Raises:
        UserError: no such set, or the Hub cannot be reached.
    """
    if name not in known_sets():
        raise UserError(f"no set `{name}`; there are {', '.join(known_sets())}")
    # The splits on the Hub that make up the set: all of one repository, at one revision.
    splits = hub_splits(KnownSource(known=name, limit="all"))
    if not splits[0].revision:
        # Without a revision the newest commit is read. `look_up` returns it, and the size of a
        # download. `place` is name, revision and files of the repository.
        commit, _ = look_up(dataset_repository(**splits[0].place))
        splits = tuple(split.model_copy(update={"revision": commit}) for split in splits)
    path = folder / f"{name}.jsonl"
    # The remedy in the error "the Hub cannot be reached; ...".
    elsewhere = f"run `./reckon benchmarks {name}` where it can be, and bring {path} here"
    count = 0
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as lines:
        for split in splits:
            for row in hub_rows(split, elsewhere=elsewhere):
                # A row with a text that is not UTF-8.
                if isinstance(row.fields, RowFault):
                    raise UserError(f"{row.place}: {row.fields}")
                # default=str: Arrow has dates and decimals, JSON has not.
                lines.write(json.dumps(row.fields, ensure_ascii=False, default=str) + "\n")
                count += 1
    return path, count
