"""A machine without git is one line, or no answer."""

import pytest

from lib.core.errors import UserError
from lib.core.git import git


def test_without_git_a_question_has_no_answer(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert git("log", strict=False) == ""
    with pytest.raises(UserError, match="git is not installed"):
        git("log")
