"""Show how the rows of a file would be read, and write the file into params.yaml as a source."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lib.artifacts import replacing
from lib.artifacts.problems import Problem, excerpt
from lib.params import PARAMS_FILE, parse_params
from lib.params.data import PathSource
from lib.params.load import read_yaml, round_trip
from lib.problems.columns import guess_columns, to_problem
from lib.problems.good_rows import good_rows
from lib.problems.rows import Fields, RowFault
from lib.problems.sources import read_source
from lib.problems.store import Drops

NUM_ROWS = 1000
"""Rows that are tried; reading a whole file may take minutes."""
NUM_SHOWN = 3

_SIGNS = {
    "mmlu": {"question", "choices"},
    "olympiadbench": {"question", "final_answer", "subfield"},
    "open_math_reasoning": {"problem", "generated_solution", "expected_answer"},
    "dapo": {"prompt", "reward_model", "ability"},
    "math_jsonl": {"prompt", "response"},
    "alpaca_eval": {"instruction", "output", "generator"},
}
"""Columns by which an adapter's rows are known."""


@dataclasses.dataclass(frozen=True)
class Preview:
    """The first rows of a file, as `prepare` would read them.

    Attributes:
        source: the file as a source of params.
        problems: the first good problems.
        drops: counts and examples of the bad rows.
    """

    source: PathSource
    problems: tuple[Problem, ...]
    drops: Drops

    def lines(self) -> Iterator[str]:
        columns = f", columns {self.source.columns}" if self.source.columns else ""
        yield f"{self.source.path}: read by `{self.source.adapter}`{columns}"
        for problem in self.problems:
            values = {**vars(problem), "level": str(problem.level)}
            for name in ("problem", "reference", "solution", "subject", "level"):
                if values[name]:
                    yield f"  {name:<10} {excerpt(values[name], 100)}"
            yield ""
        yield f"{self.drops.num_read} rows tried; would be dropped: {self.drops}"
        for reason, examples in self.drops.examples.items():
            yield f"  {reason}: {examples[0]['row']}: {excerpt(examples[0]['found'], 160)}"


def preview(path: Path, *, split: str = "", bare_answers: bool = True) -> Preview:
    """Find the adapter and columns for a file under data/raw, and read its first rows.

    Args:
        split: one of a folder's splits.
        bare_answers: whether rows without a worked solution are good.

    Raises:
        UserError: no such file, or no row of it can be read.
    """
    source = PathSource(path=str(path), split=split)
    fields = next(
        (row.fields for row, _ in read_source(source) if not isinstance(row.fields, RowFault)), {}
    )
    source = source.model_copy(update=_reading(fields))
    drops = Drops()
    rows = itertools.islice(read_source(source), NUM_ROWS)
    good = list(good_rows(rows, drops, "drop", origin=source.path, bare_answers=bare_answers))
    return Preview(source, tuple(good[:NUM_SHOWN]), drops)


def _reading(fields: Fields) -> dict[str, Any]:
    for adapter, signs in _SIGNS.items():
        if signs <= fields.keys():
            return {"adapter": adapter}
    try:
        to_problem(fields)
    except RowFault:
        return {"columns": guess_columns(fields)}
    return {}


def write_source(source: PathSource, *, sets: Sequence[str], benchmark: str = "") -> None:
    """Write a source into params.yaml, with every key, in place of a set's sources.

    Without `contamination_ngram`, it is set to 8: training data of a file may hold a benchmark's.

    Args:
        sets: `sft` and `grpo`, or some of them.
        benchmark: name of a benchmark to add or replace, which is evaluated too; '' for none.

    Raises:
        UserError: params.yaml would contradict itself; it stays as it is.
    """
    reader = round_trip()
    content = reader.load(PARAMS_FILE.read_text(encoding="utf-8"))
    prepare, evaluated = content["prepare"], content["evaluate"]["benchmarks"]

    def written() -> dict[str, Any]:
        """Return the source's keys, each time anew: YAML would write an alias for the second."""
        keys = ("path", "split", "adapter", "columns", "limit")
        values = source.model_dump()
        return {key: values[key] for key in keys if key != "split" or source.split}

    for name in sets:
        # The first entry, since comments belong to it.
        entries = prepare[name]["sources"]
        del entries[1:]
        entries[0]["weight"], entries[0]["source"] = "all", written()
    if benchmark:
        for entry in prepare["benchmarks"]:
            if entry["name"] == benchmark:
                entry["source"] = written()
                break
        else:
            prepare["benchmarks"].append({"name": benchmark, "source": written()})
        if benchmark not in evaluated:
            evaluated.append(benchmark)
    prepare["contamination_ngram"] = prepare["contamination_ngram"] or 8
    with replacing(PARAMS_FILE) as partial:
        reader.dump(content, partial)
        parse_params(read_yaml(partial), origin=str(PARAMS_FILE))
