"""The costs of a command, and README's numbers."""

import json
import os
import re

import click
import pytest

from bench.fresh_clone.__main__ import RESULTS, cost, sentence, taken_gb
from tests.conftest import ROOT


def test_a_command_has_its_stages_and_its_childrens_memory(tmp_path):
    script = "import time; held = bytearray(b'1') * 200_000_000; time.sleep(2)"
    command = (
        f'echo "Running stage \'one\':"; python -c "{script}"; echo "Running stage \'two@b\':"'
    )
    costs = cost(command, tmp_path, dict(os.environ))
    assert costs["peak_gb"] >= 0.2
    assert list(costs["stages"]) == ["one", "two@b"]
    # bash becomes a single command itself.
    assert cost(f'python -c "{script}"', tmp_path, dict(os.environ))["peak_gb"] >= 0.2
    assert cost("true", tmp_path, dict(os.environ))["stages"] == {}
    assert costs["stages"]["one"] > costs["stages"]["two@b"] == 0


def test_the_wheels_of_a_log_are_downloaded_or_from_a_folder(tmp_path):
    wheel = tmp_path / "b-1-py3.whl"
    wheel.write_bytes(bytes(20_000_000))
    log = f"  Downloading a-1-py3.whl (1.5 GB)\nProcessing {wheel}\n  Using cached c.whl (9 GB)\n"
    assert taken_gb(log) == 1.52


def test_a_command_that_fails_is_named(tmp_path):
    with pytest.raises(click.ClickException, match="`exit 3` ended with exit code 3"):
        cost("exit 3", tmp_path, dict(os.environ))


def test_readme_has_the_measured_costs():
    measured = json.loads(RESULTS.read_text("utf-8"))["tiny-cpu"]
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"Measured {measured['note']}" in readme and sentence(measured) in readme


def test_pages_have_the_pretrained_models_costs_and_completions():
    measured = json.loads(RESULTS.read_text("utf-8"))["smollm2-135m"]
    run, stages = measured["run"], measured["run"]["stages"]
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    page = " ".join((ROOT / "docs/models.md").read_text("utf-8").split())
    assert f"`make all` takes {run['minutes']:.0f} minutes {measured['note']}" in readme
    assert f"{run['peak_gb']} GB measured" in readme
    took = f"`make all` took {run['minutes']:.0f} minutes: SFT's 113 steps {stages['sft']:.0f}"
    assert f"{took}, GRPO's 30 steps {stages['grpo']:.0f}, the rest mostly" in page
    assert f"at most {run['peak_gb']} GB" in page
    # The table's cells hold the completions, a line each, without the prompt format's tags.
    for completion in measured["completions"].values():
        lines = re.sub(r"<\w+>|</\w+>", "\n", completion).split("\n")
        assert all(line.strip()[:20] in readme for line in lines if line.strip()), completion
