"""A page's links, headings and commands exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from commands import GROUPS, main
from tests.conftest import ROOT, run_command

FOLDERS = (".", "docs", "examples/*", "lib/presets", "lib/rewards/stacks", "bench/*")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
VERBS = {*re.findall(r"^([a-z-]+):(?! new)", MAKEFILE, re.MULTILINE)}
_FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def prose_of(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """Turn headings into anchors as GitHub does: "## A public course" -> "a-public-course"."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links_of(page: Path) -> Iterator[str]:
    text = prose_of(page)
    labels = set(re.findall(r"^\[([^]]+)\]: ", text, re.MULTILINE))
    yield from (label for label in re.findall(r"\]\[([^]]+)\]", text) if label not in labels)
    text = re.sub(r"`[^`\n]*`", "", text)
    for link in re.findall(r'\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"', text):
        path, _, anchor = "".join(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in path and not (
            target.exists() and (not anchor or anchor in anchors_of(target))
        ):
            yield "".join(link)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_of_a_page_leads_somewhere(page):
    assert list(broken_links_of(page)) == []


def test_the_index_of_the_docs_links_every_page():
    index = ROOT / "docs/README.md"
    names = {page.name for page in PAGES if page.parent == index.parent} - {index.name}
    assert names <= set(re.findall(r"\]\(([^)#]+)", prose_of(index)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_verbs_variables_and_modules_on_a_page_exist(page):
    text = page.read_text("utf-8").replace("\\\n", " ")
    shown = re.findall(
        r"(?:`|&& |^)(?:[A-Z_]+=\S+ )*make ([a-z][a-z-]*)(?: ([A-Z_]+)=)?", text, re.M
    )
    assert {verb for verb, _ in shown} <= VERBS
    read = MAKEFILE + (ROOT / "requirements/install.sh").read_text("utf-8")
    assert {variable for _, variable in shown if variable} <= {*re.findall(r"\b[A-Z_]+\b", read)}
    modules = re.findall(r"python -m ((?:stages|lib|tests|bench)[\w.]*)", text)
    for module in {each.rstrip(".") for each in modules} - {"bench.NAME"}:
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_on_a_page_takes_its_arguments(page):
    text = page.read_text(encoding="utf-8").replace("\\\n", " ").replace("-->", "")
    for shown in re.findall(r"\./reckon\b([^`\n|#]*)", text):
        words = shlex.split(shown)
        # Click parses all arguments, then prints the help.
        words.insert(words.index("--") if "--" in words else len(words), "--help")
        ran = CliRunner().invoke(main, words)
        assert ran.exit_code == 0, f"./reckon{shown}: {ran.output}"


def test_every_command_that_an_error_names_exists():
    files = run_command("git", "ls-files", "lib", "stages", "commands", "studies", "*.yaml").stdout
    text = "".join(Path(ROOT, file).read_text("utf-8", "ignore") for file in set(files.split()))
    named = set(re.findall(r"\./reckon ([a-z][a-z-]+)", text))
    assert named <= {name for names in GROUPS.values() for name in names}
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= VERBS


def test_every_promise_names_a_test():
    rows = re.findall(r"^\|[^|]+\|(.+)\|$", (ROOT / "SECURITY.md").read_text("utf-8"), re.M)
    folder = path = ROOT
    count = 0
    for row in rows:
        if place := re.search(r"test in `(\S+)/`", row):
            folder = ROOT / place[1]
        for file, name in re.findall(r"`(\S+\.py)`|`(test_\w+)`", row):
            path = folder / file if file else path
            assert not name or f"def {name}(" in path.read_text("utf-8"), name
            count += bool(name)
    assert count > 25
