"""The published pages as functions of the files that hold their numbers."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.coverage.__main__ import RESULTS as COVERAGE
from bench.coverage.__main__ import problems_table, seeds_table
from bench.grpo.page import FOLDER as GRPO
from bench.grpo.page import render
from bench.release.example import RECORD, with_example
from lib.artifacts import read_json
from lib.params.load import read_yaml
from lib.studies.definition import STUDIES, load_study
from lib.studies.pages import RESULTS, START, study_markdown, with_rates
from tests.conftest import ROOT

COMPARE = Path("docs/compare.md")
INTERVALS = Path("bench/coverage/README.md")
REPORTS = Path("reports/studies")
FIGURES = Path(__file__).with_name("figures.yaml")

NUMBER = r"[+−-]?\d+(?:,\d{3})*(?:\.\d+)?"


@dataclasses.dataclass(frozen=True)
class Page:
    """A page, or a part of one, that is computed from a file.

    Attributes:
        path: the page, relative to the root of the checkout.
        source: the file with the numbers.
        render: the page's text → the text with the numbers of `source`.
    """

    path: Path
    source: Path
    render: Callable[[str], str]


def pages() -> Iterator[Page]:
    """Yield all pages; the current folder is the root of a checkout."""
    for numbers in sorted(REPORTS.glob("*/study.json")):
        name = numbers.parent.name
        study, metrics = load_study(STUDIES / f"{name}.yaml"), read_json(numbers)
        text = study_markdown(name, study, metrics)
        yield Page(numbers.with_name("study.md"), numbers, lambda _, text=text: text)
        if START.format(name) in RESULTS.read_text("utf-8"):
            arguments = name, study, metrics
            yield Page(RESULTS, numbers, lambda text, own=arguments: with_rates(text, *own))
    example = read_json(RECORD)
    yield Page(COMPARE, RECORD, lambda text: with_example(text, **example))
    results = COVERAGE.relative_to(ROOT)
    coverage = read_json(results)
    for table in (problems_table(coverage["problems"]), seeds_table(coverage["seeds"])):
        yield Page(INTERVALS, results, lambda text, table=table: with_table(text, table))
    results = GRPO.relative_to(ROOT) / "results.json"
    text = render(read_json(results))
    yield Page(results.with_name("README.md"), results, lambda _: text)
    for file, entries in read_yaml(FIGURES).items():
        content = read_json(Path(file))
        for entry in entries:
            yield Page(
                Path(entry["page"]),
                Path(file),
                lambda text, entry=entry, content=content: with_figures(text, entry, content),
            )


def with_table(text: str, table: str) -> str:
    """Return `text` with the table that has this header replaced."""
    header = table.splitlines()[0]
    old = re.search(rf"^{re.escape(header)}\n(\|.*\n)*", text, re.M)
    if not old:
        raise LookupError(header)
    return text[: old.start()] + table.rstrip() + "\n" + text[old.end() :]


def with_figures(text: str, entry: dict[str, Any], content: Any) -> str:
    """Return `text` with the numbers of one entry of figures.yaml.

    Args:
        content: of the entry's file.

    Raises:
        LookupError: the page lacks the entry's text, or the file its key.
    """
    words = r"\s+".join(map(re.escape, entry["text"].split()))
    shown = re.search(words.replace(r"\{\}", f"({NUMBER})"), text)
    if not shown:
        raise LookupError(entry["text"])
    for group, key in reversed(list(enumerate(entry.get("keys", ("mean", "low", "high")), 1))):
        value: Any = content
        for part in f"{entry['at']}/{key.removeprefix('-')}".split("/"):
            value = value[int(part) if isinstance(value, list) else part]
        signed = -value if key.startswith("-") else value
        number = signed * entry.get("times", 100) + entry.get("plus", 0)
        text = text[: shown.start(group)] + like(shown[group], number) + text[shown.end(group) :]
    return text


def like(shown: str, number: float) -> str:
    """Format a number as the page shows it: decimals, commas, and a plus if the page has one."""
    places = len(shown.partition(".")[2])
    number = round(number, places)
    sign = "+" if shown[0] == "+" or (shown[0] in "−-" and number > 0) else "-"
    comma = "" if re.match(r"\D?\d{4}", shown) else ","
    return f"{number:{sign}{comma}.{places}f}".replace("-", "−")
