"""The page agrees with the committed results; what they say is measured afresh, small."""

import pytest

from tests.bench.objectives.__main__ import FOLDER, WAYS, in_a_process, render
from tests.bench.results import read

RESULTS = read(FOLDER)


def test_the_readme_shows_the_committed_numbers() -> None:
    assert list(RESULTS["ways"]) == list(WAYS)
    assert (FOLDER / "README.md").read_text() == render(RESULTS)


@pytest.mark.slow
def test_measured_afresh_the_fused_peak_hardly_grows_with_tokens() -> None:
    small, large = (
        in_a_process("fused", 2**20, vocabulary=32_768, tokens=tokens)["peak_mib"]
        for tokens in (32, 128)
    )
    whole = in_a_process("trl", 0, vocabulary=32_768, tokens=128)["peak_mib"]
    # 96 MiB are one tensor of the logits of 8 × 96 tokens more; activations are 20 to 40.
    assert large - small < 96 / 2
    assert large < whole / 3
