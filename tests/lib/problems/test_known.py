import re

import pytest

from lib.errors import UserError
from lib.problems.adapters import ADAPTERS
from lib.problems.known import KNOWN, fetch_known


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_set_is_pinned_and_its_adapter_exists(name):
    assert KNOWN[name].adapter in ADAPTERS
    for part in KNOWN[name].parts:
        assert re.fullmatch(r"[0-9a-f]{40}", part.revision)


def test_competition_math_is_another_name_of_math():
    assert KNOWN["competition_math"] == KNOWN["math"]


def test_an_unknown_set_is_answered_with_those_that_there_are(tmp_path):
    with pytest.raises(UserError, match="no set `gsm9k`; there are gsm8k_train, gsm8k"):
        fetch_known("gsm9k", tmp_path)
