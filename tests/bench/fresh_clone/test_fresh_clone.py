"""The costs of a command, and README's numbers."""

import json
import os

import click
import pytest

from tests.bench.fresh_clone.__main__ import RESULTS, cost, sentence, taken_gb
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
