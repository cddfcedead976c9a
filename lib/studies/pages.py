"""A study's Markdown page, figures and table of results, and the HTML page of all studies."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from lib.artifacts import read_json
from lib.core.errors import UserError
from lib.report.charts import Figure, figure_svg, learning_curve, whiskers
from lib.report.text import Table, markdown_table, percent, points, render_template
from lib.studies.definition import Study
from lib.studies.measures import ENTROPY, UNSEEN
from lib.studies.results import claim_verdicts, measure_names

START = "<!-- ./reckon study {} --pages -->"
END = "<!-- /study -->"
"""Marks around a study's table in `RESULTS`."""

RESULTS = Path("docs/results.md")

FEW_STEPS = 3
"""Curves are not drawn if each has at most this many points."""


def study_markdown(name: str, study: Study, metrics: Mapping[str, Any]) -> str:
    """Return the study's Markdown page, study.md.

    Args:
        name: the study's name, also the title.
        metrics: the content of study.json.
    """
    return render_template(
        "study.md.j2",
        title=name,
        study=study,
        verdicts=claim_verdicts(study, metrics),
        tables=(rates_table(study, metrics), differences_table(study, metrics)),
        table=markdown_table,
        figures=study_figures(study, metrics),
        hours=metrics["hours"],
        made_from=metrics.get("made_from", {}),
    )


def study_figures(study: Study, metrics: Mapping[str, Any]) -> list[Figure]:
    """Return the study's figures: all variants' rates, and accuracy by step while GRPO trains.

    The first has a panel per measure but entropy. The second is left out if no GRPO variant was
    validated at more than `FEW_STEPS` steps.
    """
    rates = metrics["variants"]
    panels = [
        # `whiskers` draws a dot with its interval for each variant. It colours dots by checkpoint:
        # with the measure as the only "checkpoint", all dots of a panel have one colour.
        whiskers(
            [
                {"label": variant, "checkpoint": measure, **_bounds(rates[variant][measure])}
                for variant in study.variants
            ],
            title=measure,
            checkpoints=[measure],
            labels=list(study.variants),
        )
        for measure in measure_names(metrics)
        # Entropy is in nats, and the axis is in percent.
        if measure != ENTROPY
    ]
    caption = "Means over seeds with 95 % intervals."
    figures = [Figure("figure", "Rates of each variant", caption, tuple(panels), columns=3)]
    curves = {
        variant: steps
        for variant, steps in metrics["validation"].items()
        if study.variants[variant].checkpoint == "grpo"
    }
    if curves and max(map(len, curves.values())) > FEW_STEPS:
        figures.append(_curve_figure(study, metrics, curves))
    return figures


def _curve_figure(
    study: Study, metrics: Mapping[str, Any], curves: Mapping[str, Mapping[str, Any]]
) -> Figure:
    """Plot greedy accuracy by training step: curves of GRPO variants, level lines of SFT variants.

    A line is at the SFT variant's last validation. An SFT variant gets none if its checkpoint is
    the first point of a curve.

    Args:
        metrics: the content of study.json.
        curves: GRPO variant → training step → numbers.
    """
    # Params of SFT variants without a line. A curve starts from the SFT with its own params. {} is
    # the SFT of params.yaml: curves that change only GRPO's params start from it.
    starts = [{}, *(study.variants[variant].params for variant in curves)]
    levels = {
        name: steps[max(steps, key=int)]
        for name, steps in metrics["validation"].items()
        if study.variants[name].checkpoint == "sft" and study.variants[name].params not in starts
    }
    rows: list[dict[str, Any]] = [
        {"step": step, "series": variant, **_bounds(curve[str(step)])}
        for variant, curve in curves.items()
        for step in sorted(map(int, curve))
    ]
    steps_of_curves = [row["step"] for row in rows]
    for variant, numbers in levels.items():
        for step in (min(steps_of_curves), max(steps_of_curves)):
            rows.append({"step": step, "series": variant, **_bounds(numbers)})
    title = "greedy accuracy on validation problems"
    panel = learning_curve(rows, title=title, series=[*curves, *levels])
    return Figure("curve", "While GRPO trains", "Means over seeds, 95 % bands.", (panel,), 1)


def _bounds(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return {"value", "low", "high"} for a chart, and "n" if it is known."""
    bounds = {"value": numbers["mean"], "low": numbers["low"], "high": numbers["high"]}
    return bounds | ({"n": numbers["n"]} if "n" in numbers else {})


def write_pages(
    name: str,
    study: Study,
    folder: Path,
    *,
    results: Path | None = None,
) -> list[str]:
    """Write the study's page and figures and the page of all studies; return the verdicts.

    Args:
        folder: the folder of all studies; its `<name>/study.json` has the numbers.
        results: a page in which the table of this study is replaced, if it has one.

    Raises:
        UserError: the study has no numbers, or those of other variants, seeds or comparisons.
    """
    own = folder / name
    # Read from the file, whose numbers are rounded, so that page and file agree.
    metrics = read_json(own / "study.json") if (own / "study.json").is_file() else {}
    rates = metrics.get("variants", {})
    # The numbers of any one measure, whose keys "seed_0", … name the seeds: all measures have the
    # same seeds.
    numbers: Mapping[str, float] = next(
        (each for measures in rates.values() for each in measures.values()), {}
    )
    seeds = {key for key in numbers if key.startswith("seed_")}
    # "sft to grpo" → measure → numbers; a comparison that names no measure needs no particular one.
    pairs = metrics.get("comparisons", {})
    lacking = [
        each
        for each in study.comparisons
        if each.name not in pairs or each.measure not in {"", *pairs[each.name]}
    ]
    expected = {f"seed_{seed}" for seed in study.seeds}
    if set(rates) != set(study.variants) or seeds != expected or lacking:
        raise UserError(
            f"{own / 'study.json'} does not have the variants, seeds and comparisons of "
            f"studies/{name}.yaml; run `make study STUDY={name}`"
        )
    for figure in study_figures(study, metrics):
        (own / f"{figure.name}.svg").write_text(figure_svg(figure), encoding="utf-8")
    page = study_markdown(name, study, metrics)
    (own / "study.md").write_text(page, encoding="utf-8")
    (folder / "index.html").write_text(studies_page(folder), encoding="utf-8")
    if results:
        text = with_rates(results.read_text("utf-8"), name, study, metrics)
        results.write_text(text, encoding="utf-8")
    return claim_verdicts(study, metrics)


def with_rates(page: str, name: str, study: Study, metrics: Mapping[str, Any]) -> str:
    """Return `page` with the study's table between its marks; unchanged if it has no marks.

    Raises:
        UserError: the second mark is missing.
    """
    before, start, rest = page.partition(START.format(name))
    if not start:
        return page
    _, end, after = rest.partition(END)
    if not end:
        raise UserError(f"{RESULTS}: no `{END}` after `{start}`")
    table = markdown_table(rates_table(study, metrics, what="held-out problems, "))
    return f"{before}{start}\n{table}\n{end}{after}"


def rates_table(study: Study, metrics: Mapping[str, Any], *, what: str = "") -> Table:
    """Build the table of rates, "53.4 (50.7–56.2)": a row per measure, a column per variant.

    Args:
        metrics: the content of study.json.
        what: beginning of the header, such as "held-out problems, ".
    """
    rates = metrics["variants"]
    rows = tuple(
        (
            f"{measure}, nats" if measure == ENTROPY else measure,
            *(
                _range(rates[name][measure], measure, percent).replace(" to ", "–")
                for name in study.variants
            ),
        )
        for measure in sorted(measure_names(metrics), key=lambda name: not name.startswith(UNSEEN))
    )
    header = f"{what}%, mean of {len(study.seeds)} seeds (95 % interval)"
    return Table("Rates", (header, *study.variants), rows)


def differences_table(study: Study, metrics: Mapping[str, Any]) -> Table:
    """Build the table of differences: a row per pair of variants and measure.

    Columns: the mean over seeds with its interval, then each seed's difference.

    Args:
        metrics: the content of study.json.
    """
    rows = []
    # "sft to grpo"; each pair once, since two claims may be about one pair.
    for pair in dict.fromkeys(each.name for each in study.comparisons):
        for measure in measure_names(metrics):
            numbers = metrics["comparisons"][pair][measure]
            mean = _range(numbers, measure, points)
            seeds = [_number(numbers[f"seed_{seed}"], measure, points) for seed in study.seeds]
            rows.append((pair.replace(" to ", " → "), measure, mean, *seeds))
    header = ("comparison", "measure", "mean", *(f"seed {seed}" for seed in study.seeds))
    return Table("Differences in points", header, tuple(rows))


def studies_page(folder: Path) -> str:
    """Return one HTML page of all studies below `folder`, which needs no network."""
    pages = {}
    for page in sorted(folder.glob("*/study.md")):
        # Raw HTML is shown as text: study.md needs none, and its texts from the study's YAML file
        # could have some.
        markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
        content = markdown.render(page.read_text("utf-8"))
        # Figures are embedded, so that the page is one file: each image tag, such as
        # <img src="figure.svg" alt="…" />, is replaced by the SVG itself.
        for tag, file in re.findall(r'(<img src="(\w+\.svg)"[^>]*>)', content):
            content = content.replace(tag, (page.parent / file).read_text("utf-8"))
        pages[page.parent.name] = content
    verdicts = {
        name: Counter(re.findall(r"<p><strong>(.+?)</strong>:", content))
        for name, content in pages.items()
    }
    return render_template("studies.html.j2", pages=pages, verdicts=verdicts)


def _range(numbers: Mapping[str, float], measure: str, form: Callable[[float], str]) -> str:
    """Format a measure's mean and interval: "53.4 (50.7 to 56.2)", entropy "0.260 (…)" in nats."""
    mean, low, high = (_number(numbers[key], measure, form) for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def _number(value: float, measure: str, form: Callable[[float], str]) -> str:
    """Format a rate by `percent`, or a difference by `points`; entropy in nats, signed alike."""
    if measure != ENTROPY:
        return form(value)
    return f"{value:{'+' if form is points else ''}.3f}".replace("-", "−")
