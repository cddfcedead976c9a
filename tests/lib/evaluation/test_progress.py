"""The bar starts at what was done before and says how fast it goes."""

import re

import pytest

from lib.evaluation import progress as module
from lib.evaluation.progress import Progress


def test_the_bar_shows_completions_tokens_a_second_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = module.tqdm
    monkeypatch.setattr(module, "tqdm", lambda **of: shown(**{**of, "disable": False}))
    with Progress(40, done=10, label="evaluate grpo") as progress:
        progress.made(10, num_tokens=500)
        progress.bar.refresh()
    said = capsys.readouterr().err
    assert re.search(r"evaluate grpo:\s+50%.*20/40.*[\d,]+ tokens/s", said)
    assert re.search(r"<\d\d:\d\d", said)


def test_without_a_terminal_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(40, done=0, label="evaluate grpo") as progress:
        progress.made(40, num_tokens=500)
    assert capsys.readouterr().err == ""
