"""The commands of docs/from_their_commands.md take their first steps on a CPU.

Overrides: `prepare`, and the first step of each phase. GPU engines are replaced by the page's own
line for a machine without one, models by random ones of their architecture, sets by a few rows in
their columns. Verbs: the recipe's command accepts its arguments.
"""

import importlib
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dvc.utils.hydra import apply_overrides
from ruamel.yaml import YAML
from transformers import TrainerCallback

from lib.engines.policy import add_adapter, load_policy
from lib.params import compose_preset, load_params
from tests.conftest import ROOT, run_command
from tests.docs.test_their_commands import OURS
from tests.pipeline.stages import run, trainers_of_stages
from tests.pipeline.systems import SYSTEMS
from tests.pipeline.test_presets import lay_out_checkout

(NO_GPU,) = (span for _, span in OURS if "model.mixed_precision=fp32" in span)


class FirstStep(TrainerCallback):
    """A callback that ends training after the first step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = True


OVERRIDES = {(preset[:2], span): preset for preset, span in reversed(OURS) if span[:3] == "-S "}
"""Preset by its first two letters and the override: S4's two models share their rows."""


@pytest.mark.slow
@pytest.mark.parametrize(("system", "span"), OVERRIDES)
def test_an_override_takes_its_first_steps(system, span, tmp_path, monkeypatch):
    preset, file = OVERRIDES[system, span], tmp_path / "params.yaml"
    trainers = trainers_of_stages(monkeypatch, FirstStep())
    file.write_text(compose_preset(preset), encoding="utf-8")
    # An override may set the group size itself.
    without_gpu = [word for word in shlex.split(NO_GPU) if "group_size" not in word]
    words = [word for word in (*without_gpu, *shlex.split(span)) if word != "-S"]
    apply_overrides(str(file), [*words, "model.attention=sdpa"])
    content = YAML(typ="safe").load(file)
    engines = {content[section]["engine"] for section in ("rollout", "validation", "evaluate")}
    assert engines == {"transformers"} or "engine=vllm-server" in span
    content["rollout"]["max_new_tokens"] = 8
    for phase in ("sft", "grpo"):
        content[phase] |= {"eval_steps": 0, "save_steps": 0, "keep_checkpoints": 0}
    lay_out_checkout(content, tmp_path, monkeypatch, architecture=SYSTEMS[preset]["architecture"])
    (tmp_path / "data/raw/system.txt").write_text("Be brief.", encoding="utf-8")
    shutil.copytree(ROOT / "plugins", tmp_path / "plugins")
    run("prepare")
    params = load_params()
    if params.sft.adapter:
        base = Path("data/models/base")
        policy = load_policy(base, base=base, settings=params.model)
        add_adapter(policy, params.model.lora).save_pretrained(params.sft.adapter)
    run("sft")
    run("grpo")
    taken = {phase: trainer.state.global_step for phase, trainer in trainers.items()}
    assert taken == {phase: 1 for phase in ("sft", "grpo") if not getattr(params, phase).skipped}


VERBS = sorted({span for _, span in OURS if re.match(r"(\w+=\S+ )*(make|python) ", span)})


@pytest.mark.parametrize("command", VERBS)
def test_a_verb_runs_a_command_that_takes_its_arguments(command):
    dry = re.sub(r"\bmake ", "make --dry-run --old-file=setup --old-file=dev ", command)
    done = run_command("bash", "-euc", dry if dry != command else f"echo {command}")
    assert done.returncode == 0, done.stderr
    for recipe in re.findall(
        r"python -m ((?:stages|lib)\.[^&\n]+)", done.stdout.replace("\\\n", " ")
    ):
        module, *arguments = shlex.split(recipe)
        end = arguments.index("--") if "--" in arguments else len(arguments)
        arguments.insert(end, "--help")  # click parses all arguments, then ends
        parsed = CliRunner().invoke(importlib.import_module(module).main, arguments)
        assert parsed.exit_code == 0, parsed.output
