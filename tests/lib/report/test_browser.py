"""The report page works in headless Chromium (Debian: `apt-get install chromium`)."""

import dataclasses

import pytest

from tests.lib.report.chromium import Chromium, executable
from tests.lib.report.runs import HOSTILE, load
from tests.lib.report.test_write import written

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if executable() is None:
        pytest.skip("no chromium on PATH (Debian: apt-get install chromium)")
    with Chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    hostile = dataclasses.replace(
        load(folder / "b", hostile=HOSTILE),
        provenance={"</script><script>bad()": {"settings": {"<b>": 1}}},
    )
    for name, run in (("plain", load(folder / "a")), ("hostile", hostile)):
        written(folder / name, run)
    return {name: (folder / name / "report.html").as_uri() for name in ("plain", "hostile")}


@pytest.fixture
def page(browser, addresses):
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(addresses["plain"])
    return browser


def use(page, selector, value, event="change"):
    page.evaluate(
        f"(() => {{ const s = document.querySelector({selector!r});"
        f" s.value = {value!r}; s.dispatchEvent(new Event({event!r})); }})()"
    )


def choose(page, **filters):
    for name, value in filters.items():
        use(page, f"[data-filter={name}]", value)


def search(page, text):
    use(page, "#search", text, "input")
    page.wait_for(f"filters.needle === {text.lower()!r}")


def count(page):
    return int(page.evaluate("document.getElementById('count').textContent.split(' ')[0]"))


def shown(page, script):
    return page.evaluate(f"rollouts.shown.map((row) => {script})")


def test_the_page_opens_and_requests_nothing_else(page, addresses):
    for holder in range(page.evaluate("document.querySelectorAll('.charts').length")):
        page.evaluate(f"document.querySelectorAll('.charts')[{holder}].scrollIntoView()")
        page.wait_for(f"document.querySelectorAll('.charts')[{holder}].dataset.state === 'drawn'")
    assert page.complaints == []
    assert set(page.requests) == {addresses["plain"]}
    assert page.evaluate("document.querySelectorAll('.plot svg').length") > 15


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("checkpoint", "sft", "row.checkpoint"),
        ("benchmark", "harder", "row.problem.benchmark"),
        ("mode", "greedy", "row.mode"),
        ("level", "3", "row.problem.level"),
        ("subject", "coins", "row.problem.subject"),
        ("tag", "unseen_equations", "row.problem.tags[0]"),
        ("change", "gained", "isRight(row) ? 'gained' : 'wrong'"),
    ],
)
def test_a_filter_keeps_what_matches_and_nothing_else(page, name, value, field):
    choose(page, checkpoint="", benchmark="")
    everything = page.evaluate(f"rollouts.rows.map((row) => {field})")
    choose(page, **{name: value})
    assert set(shown(page, field)) == {value}
    if name != "change":
        assert count(page) == everything.count(value)


def test_search_finds_what_was_written_and_marks_it(page):
    choose(page, checkpoint="", benchmark="")
    search(page, "HAS 17")
    # Three checkpoints, each with a greedy completion and four samples.
    assert count(page) == 3 * 5
    assert page.evaluate("document.querySelector('.question mark').textContent") == "has 17"
    search(page, "nothing has this text")
    assert count(page) == 0
    assert "No completion matches" in page.evaluate("document.getElementById('detail').textContent")


def test_a_link_opens_its_completion_despite_the_filters(page, addresses):
    choose(page, mode="sampled")
    choose(page, checkpoint="sft")
    page.press("j")
    page.press("l")
    link = page.evaluate("location.hash")
    row = "[detail.row.checkpoint, detail.row.problem.id, detail.row.mode, detail.row.sample]"
    wanted = page.evaluate(row)
    assert link == f"#sft/held_out/{wanted[1]}/sampled/{wanted[3] + 1}"

    page.call("Page.navigate", url="about:blank")
    page.open(addresses["plain"] + link)
    assert page.evaluate(row) == wanted
    assert page.evaluate("rollouts.shown[rollouts.selected] === detail.row")

    problem = page.evaluate("rollouts.rows.at(-1).problem.id")
    choose(page, level="3")
    search(page, "nothing has this text")
    page.evaluate(f"location.hash = '#base/harder/{problem}'")
    page.wait_for("detail.row?.checkpoint === 'base'")
    assert page.evaluate(row)[:2] == ["base", problem]
    assert page.evaluate("document.getElementById('search').value") == ""


def test_keys_walk_through_problems_and_samples(page):
    choose(page, mode="sampled")
    for key in "jjk":
        page.press(key)
    assert page.evaluate("rollouts.selected") == 1
    page.press("l")
    assert page.evaluate("[detail.row.sample, rollouts.shown[1].sample]") == [2, 1]
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.press("j")
    assert page.evaluate("[document.activeElement.value, rollouts.selected]") == ["j", 1]


def test_hostile_completions_are_shown_as_text(browser, addresses):
    browser.complaints.clear()
    browser.open(addresses["hostile"])
    texts = []
    for _ in HOSTILE:
        texts.append(browser.evaluate("document.querySelector('#detail .completion').textContent"))
        assert (
            browser.evaluate("document.querySelectorAll('#detail script, #detail img').length") == 0
        )
        browser.press("j")
    assert texts[:2] == list(HOSTILE[:2])
    assert texts[2].startswith("U+202Eright to leftU+202C U+0000U+0007U+001B[31mred")
    assert "U+D800" in texts[2] and "שלום" in texts[2]
    assert "980,000" in texts[3]
    browser.press("k")
    for _ in range(3):
        browser.evaluate("document.querySelector('#detail .completion button')?.click()")
    text = browser.evaluate("document.querySelector('#detail .completion').textContent")
    assert text == HOSTILE[3]
    assert browser.evaluate("document.title").startswith("reckon:")
    assert "<b>" in browser.evaluate("document.getElementById('provenance').textContent")
    assert browser.complaints == []


def test_twenty_thousand_completions_are_listed(browser, tmp_path):
    run = load(tmp_path / "run", problems=560, samples=8)
    assert sum(map(len, run.completions.values())) > 20_000
    browser.complaints.clear()
    written(tmp_path / "out", run)
    browser.open((tmp_path / "out" / "report.html").as_uri())
    choose(browser, checkpoint="", benchmark="")
    total = sum(map(len, run.completions.values()))
    browser.evaluate("document.getElementById('list').focus()")
    browser.press("End", code=35)
    assert browser.evaluate("rollouts.selected") == total - 1
    # Only the rows on the screen are drawn.
    assert browser.evaluate("document.querySelectorAll('#list .row').length") < 40
    assert browser.complaints == []


def entries(page):
    return page.evaluate(
        "[...document.querySelectorAll('#training-list .row')].map((row) => row.textContent)"
    )


def test_training_rollouts_are_read_by_step_and_by_problem(page):
    assert [line.split(" ")[1] for line in entries(page)] == [*map(str, range(1, 13))]
    use(page, "#training-view", "problem")
    assert len(entries(page)) == 3
    # Wrong in the first half of the steps, right once in each group of the second half.
    assert "reward 0.25 → 0.25 → 0.75 → 0.75" in entries(page)[0]
    steps = "[...document.querySelectorAll('#training-detail .answer-card')].length"
    assert page.evaluate(steps) == 4
    last = "document.querySelector('#training-detail .answer-card:last-child').textContent"
    assert "+1.00" in page.evaluate(last) and "not in the loss 8" in page.evaluate(last)
    use(page, "#training-search", "step 12: ", "input")
    assert len(entries(page)) == 1


@pytest.mark.parametrize("link", ["#grpo/%E0/none", "#training/step/99"])
def test_a_link_to_nothing_is_named(page, addresses, link):
    page.call("Page.navigate", url="about:blank")
    page.open(addresses["plain"] + link)
    assert page.evaluate("document.getElementById('unknown').hidden") is False
    assert link in page.evaluate("document.getElementById('unknown').textContent")
    page.evaluate("location.hash = '#results'")
    page.wait_for("document.getElementById('unknown').hidden")
