"""Importing a stage sets its environment, with `make` and without."""

import pytest

from tests.conftest import run_python

UNSET = (
    *("TRANSFORMERS_NO_TF", "TRANSFORMERS_NO_TENSORFLOW", "USE_TF", "HF_HUB_DISABLE_TELEMETRY"),
    *("HF_HUB_OFFLINE", "DVC_STAGE", "UNSLOTH_DISABLE_STATISTICS"),
    *("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"),
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)


def printed(code: str, **environment: str) -> str:
    return run_python(code, **environment).stdout.strip()


@pytest.mark.parametrize("room", ["stages", "lib.inference", "lib.training"])
def test_an_installed_tensorflow_is_left_alone(room, tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").touch()
    (tmp_path / "tensorflow-2.20.0.dist-info").mkdir()
    about = "Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.20.0\n"
    (tmp_path / "tensorflow-2.20.0.dist-info/METADATA").write_text(about, encoding="utf-8")
    sees = (
        "import importlib.util, runpy; (folder,) = "
        "importlib.util.find_spec('datasets').submodule_search_locations; "
        "print(runpy.run_path(f'{folder}/config.py')['TF_AVAILABLE'])"
    )
    if room == "stages":  # the others are beside it
        assert printed(sees, PYTHONPATH=str(tmp_path)) == "True"
    assert printed(f"import {room}; {sees}", PYTHONPATH=str(tmp_path)) == "False"


def test_waiting_threads_spin_shortly_unless_the_user_says_otherwise():
    shown = (
        "import stages, os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    )
    assert printed(shown) == "3000 False"
    assert printed(shown, OMP_WAIT_POLICY="ACTIVE") == "None False"
    assert printed(shown, GOMP_SPINCOUNT="5") == "5 False"


def test_a_stage_of_dvc_asks_nothing_of_the_network():
    shown = (
        "import os, stages; from huggingface_hub import constants; "
        "print(constants.HF_HUB_OFFLINE, os.environ['UNSLOTH_DISABLE_STATISTICS'])"
    )
    assert printed(shown, DVC_STAGE="sft") == "True 1"
    assert printed(shown, DVC_STAGE="sft", HF_HUB_OFFLINE="0") == "False 1"
    assert printed(shown) == "False 1"
