"""What is newer than the published release."""

import copy

import pytest

from lib.artifacts import write_json
from lib.report.release import newer_stages, stage_sources

LOCK = {
    "stages": {
        "check": {"cmd": "check", "outs": [{"path": "data/checked", "md5": "0"}]},
        "sft": {
            "cmd": "sft",
            "params": {"params.yaml": {"seed": 0}},
            "deps": [
                {"path": "data/checked/code/sft.json", "md5": "1"},
                {"path": "data/raw", "md5": "2"},
                {"path": "data/models/base", "md5": "3"},
            ],
            "outs": [{"path": "data/models/sft", "md5": "4"}],
        },
        "prepare": {"cmd": "prepare", "outs": [{"path": "data/models/base", "md5": "3"}]},
    }
}


@pytest.mark.parametrize(
    ("change", "newer"),
    [
        (lambda sft: sft["deps"][0].update(md5="x"), ["sft"]),
        (lambda sft: sft["deps"][1].update(md5="x"), ["sft"]),
        (lambda sft: sft["params"]["params.yaml"].update(seed=1), ["sft"]),
        (lambda sft: sft.update(cmd="other"), ["sft"]),
        # As on a CPU that rounds in another way.
        (lambda sft: sft["deps"][2].update(md5="x"), []),
        (lambda sft: sft["outs"][0].update(md5="x"), []),
    ],
)
def test_code_params_and_data_are_newer_but_outputs_never(change, newer, tmp_path):
    lock = copy.deepcopy(LOCK)
    change(lock["stages"]["sft"])
    write_json(tmp_path / "dvc.lock", lock)
    assert newer_stages({"stages": stage_sources(LOCK)}, tmp_path / "dvc.lock") == newer
