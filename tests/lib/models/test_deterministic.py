"""`model.deterministic`: the same bits in every run, or a refusal that names what cannot."""

import dataclasses
import json

import pytest

from lib.core.errors import UserError
from lib.models.gpu import Gpu
from lib.params import compose_preset, preset_params
from lib.planning.doctor import findings
from tests.conftest import run_python
from tests.lib.planning.test_doctor import SERVER

SCRIPT = """
import json, os, sys
from pathlib import Path
from lib.params import load_params
from lib.params.model import DETERMINISTIC

model = load_params(Path(sys.argv[4])).model
assert os.environ.items() >= DETERMINISTIC.items()
assert "torch" not in sys.modules
import torch
from lib.engines.base import Sampling, open_engine
from lib.models.runtime import configure

configure(seed=0, threads=1)
assert torch.are_deterministic_algorithms_enabled()
assert not torch.is_deterministic_algorithms_warn_only_enabled()
base, size, prompts = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
settings = {"base": base, **model.loading, "batch_size": size}
engine = open_engine("transformers", base, **settings)
sampling = Sampling(num_completions=16, max_new_tokens=12, temperature=1.0)
print([[list(one.token_ids) for one in group] for group in engine.generate(prompts, sampling)])
"""


DETERMINISTIC = {"model": {"deterministic": True}}


@pytest.mark.slow
def test_batches_of_1_and_64_in_two_processes_give_the_same(base, prompts, tmp_path):
    params = tmp_path / "params.yaml"
    params.write_text(compose_preset("smoke", changes=DETERMINISTIC), "utf-8")
    one, many = (
        run_python(SCRIPT, str(base), size, json.dumps(prompts), str(params))
        for size in ("1", "64")
    )
    assert (one.stderr, many.stderr) == ("", "")
    assert one.stdout == many.stdout
    assert [len(group) for group in json.loads(one.stdout)] == [16] * len(prompts)


def refusals(name="smoke", machine=SERVER, **changes):
    """List what is not covered, of params that could run without `model.deterministic`."""
    params = preset_params(name, changes=changes).replaced(**DETERMINISTIC)
    return [each.text for each in findings(params, machine) if "deterministic" in each.text]


OLD = dataclasses.replace(SERVER, gpus=(Gpu("T4", "580.1", 16 * 2**30, 15 * 2**30, 7.5),))
VLLM = {"rollout": {"engine": "vllm"}}


def test_what_has_no_such_kernels_is_named():
    assert refusals() == refusals(machine=OLD) == refusals(**VLLM) == []
    assert "8.0" in refusals(machine=OLD, **VLLM)[0]
    assert "8.0" in refusals(machine=dataclasses.replace(SERVER, gpus=()), **VLLM)[0]
    assert "qwen2" in refusals(**VLLM, model={"name": "owner/unknown", "revision": "0" * 40})[0]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": {"deterministic": True, "backend": "unsloth"}}, "backend unsloth"),
        ({**DETERMINISTIC, "rollout": {"engine": "vllm-server"}}, "rollout.engine"),
        ({**DETERMINISTIC, "evaluate": {"engine": "vllm-server"}}, "evaluate.engine"),
    ],
)
def test_kernels_out_of_reach_are_refused(changes, named):
    with pytest.raises(UserError, match=f"model.deterministic: .*{named}"):
        preset_params("smoke", changes=changes)
