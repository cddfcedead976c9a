"""A GPU that torch cannot use ends a run before it trains on the CPU."""

import importlib
import math
from pathlib import Path

import psutil
import pytest
import torch
from click.testing import CliRunner

from lib.core.errors import UserError
from lib.models import unsloth
from lib.models.gpu import VISIBLE, find_gpus, gpu_fault
from lib.params import compose_preset
from tests.conftest import ROOT, write_script

ROW = "NVIDIA H100 80GB, {}, 81559, 81000"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Let nvidia-smi list a card of a driver's version, and torch be built for CUDA 13."""

    def install(version, capability="9.0"):
        row = ROW.format(version)
        # Older tools refuse a query for the last field.
        newest = f"echo {row!r}, {capability}" if capability else "exit 2"
        cases = f"*compute_cap*) {newest};; *) echo {row!r};;"
        tool = write_script(tmp_path / "bin/nvidia-smi", f"case $1 in {cases} esac\n")
        monkeypatch.setenv("PATH", str(tool.parent), prepend=":")

    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return install


def test_the_drivers_tool_is_read(driver, monkeypatch):
    driver("580.1")
    (gpu,) = find_gpus()
    assert (gpu.name, gpu.driver, gpu.free) == ("NVIDIA H100 80GB", "580.1", 81000 * 1024**2)
    assert gpu.capability == 9.0
    driver("450.1", "")
    (gpu,) = find_gpus()
    assert (gpu.driver, gpu.capability) == ("450.1", math.inf)
    monkeypatch.setenv("PATH", "")
    assert find_gpus() == ()


@pytest.mark.parametrize(
    ("visible", "drivers"),
    [("1", ["2"]), ("2, 0", ["3", "1"]), ("9", ["1", "2", "3"]), ("GPU-1f", ["1", "2", "3"])],
)
def test_hidden_gpus_are_not_listed(visible, drivers, tmp_path, monkeypatch):
    rows = r"\n".join(ROW.format(driver) for driver in "123")
    tool = write_script(tmp_path / "bin/nvidia-smi", f"printf '{rows}\n'\n")
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    monkeypatch.setenv(VISIBLE, visible)
    assert [gpu.driver for gpu in find_gpus()] == drivers


def test_a_gpu_that_shares_the_machines_memory_is_listed(tmp_path, monkeypatch):
    row = "NVIDIA GB10, 580.95.05, [N/A], [N/A], [N/A]"
    tool = write_script(tmp_path / "bin/nvidia-smi", f"echo {row!r}\n")
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    monkeypatch.delenv(VISIBLE, raising=False)
    (gpu,) = find_gpus()
    assert (gpu.name, gpu.driver, gpu.capability) == ("NVIDIA GB10", "580.95.05", math.inf)
    assert 0 < gpu.free < gpu.memory == psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("version", "cuda", "words"),
    [
        ("570.1", "13.0", ["570.1", "580 or newer"]),
        ("580.1", "13.0", ["580.1", "container"]),
        ("570.1", None, ["make setup EXTRA=gpu"]),
    ],
)
def test_what_keeps_torch_from_a_gpu_is_named(version, cuda, words, driver, monkeypatch):
    driver(version)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    fault = gpu_fault(find_gpus())
    assert all(word in fault for word in [*words, "H100", f"{VISIBLE}="])


def test_nothing_is_wrong_where_torch_uses_the_gpu_or_is_not_to(driver, monkeypatch):
    driver("570.1")
    with monkeypatch.context() as working:
        working.setattr(torch.cuda, "is_available", lambda: True)
        assert gpu_fault(find_gpus()) == ""
    monkeypatch.setenv(VISIBLE, "")
    assert gpu_fault(find_gpus()) == ""


@pytest.mark.parametrize(
    "name", ["check", "doctor", "sft", "grpo", "pairs", "dpo", "evaluate", "export"]
)
def test_every_stage_that_computes_refuses_the_cpu_beside_a_gpu(
    name, driver, tmp_path, monkeypatch
):
    driver("570.1")
    stage = importlib.import_module(f"{'commands' if name == 'doctor' else 'stages'}.{name}").main
    monkeypatch.chdir(tmp_path)
    Path("requirements").symlink_to(ROOT / "requirements")
    Path("params.yaml").write_text(compose_preset("smoke"), encoding="utf-8")
    for option in stage.params:
        if (getattr(option, "help", None) or "").startswith("Reads") and option.default:
            place = Path(str(option.default))
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                place.touch()
    ended = CliRunner().invoke(stage)
    assert ended.exit_code == 1
    assert "driver 570.1 is too old" in ended.output


def test_unsloth_that_finds_no_gpu_says_why(driver, monkeypatch):
    def imported(name):
        raise NotImplementedError(name)

    driver("570.1")
    monkeypatch.setattr(importlib, "import_module", imported)
    with pytest.raises(UserError, match=r"driver 570\.1 is too old"):
        unsloth._fast_language_model()
