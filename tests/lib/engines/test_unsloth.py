"""The Unsloth backend is imported first, and gets only arguments of its signatures."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from ruamel.yaml import YAML
from transformers import PreTrainedTokenizerBase

from lib.artifacts.problems import Problem, write_problems
from lib.core.errors import UserError
from lib.engines import unsloth
from lib.engines.base import Sampling, encode, open_engine
from lib.engines.policy import load_tokenizer, save_policy, trainable_policy
from lib.engines.transformers import TransformersEngine
from lib.params import compose_preset, parse_params, preset_params
from lib.prompts import prompt_format
from lib.training.grpo import grpo_setup
from lib.training.phase.validation import Validator
from lib.training.sft import sft_dataset, sft_setup
from tests.conftest import ROOT
from tests.lib.engines import fake_unsloth, fake_vllm, unsloth_contract


@pytest.fixture
def calls(monkeypatch):
    return fake_unsloth.install(monkeypatch)


class Shared(NamedTuple):
    """Fake vLLMs opened by `fast_inference`, and the calls of Unsloth."""

    opened: list[fake_vllm.FakeLlm]
    calls: fake_unsloth.Calls


@pytest.fixture
def shared(monkeypatch):
    opened: list[fake_vllm.FakeLlm] = []

    def open_fake(weights: Path, longest: int, rank: int) -> fake_vllm.FakeLlm:
        opened.append(fake_vllm.FakeLlm(weights, longest))
        return opened[-1]

    fake_vllm.install(monkeypatch)
    calls = fake_unsloth.install(monkeypatch, open_fake)
    return Shared(opened, calls)


@pytest.fixture
def settings():
    return unsloth_contract.settings("float32")


def test_a_model_is_loaded_and_adapted_as_params_say(calls, settings, base):
    policy = trainable_policy(base, base=base, settings=settings, seed=7)
    loaded, adapted = map(calls.arguments, ("from_pretrained", "get_peft_model"))
    assert loaded["model_name"] == str(base)
    assert loaded["load_in_4bit"] is False
    assert loaded["full_finetuning"] is loaded["fast_inference"] is False
    assert loaded["dtype"] == torch.float32
    assert (loaded["max_seq_length"], loaded["max_lora_rank"]) == (256, 8)
    assert (adapted["r"], adapted["lora_alpha"], adapted["random_state"]) == (8, 16, 7)
    assert adapted["target_modules"] == list(settings.lora.target_modules)
    assert loaded["use_gradient_checkpointing"] == "unsloth"
    assert adapted["use_gradient_checkpointing"] == "unsloth"
    assert loaded["kwargs"] == adapted["kwargs"] == {}
    assert loaded["args"] == ()
    assert policy.training
    assert [name for name, _ in calls] == ["from_pretrained", "get_peft_model", "for_training"]


def test_without_lora_all_weights_are_trained(calls, settings, base):
    full = settings.model_copy(update={"lora": settings.lora.model_copy(update={"rank": 0})})
    trainable_policy(base, base=base, settings=full, seed=0)
    ((name, arguments),) = calls
    assert (name, arguments["full_finetuning"]) == ("from_pretrained", True)
    assert arguments["fast_inference"] is False


@pytest.mark.parametrize("name", [n for n in unsloth_contract.CHECKS if "vllm" not in n])
def test_the_contract_on_the_fake(calls, settings, base, tmp_path, name):
    unsloth_contract.CHECKS[name](base, tmp_path, settings)


def test_grpo_trains_on_what_the_vllm_below_its_policy_generates(shared, settings, base, tmp_path):
    check = unsloth_contract.CHECKS["grpo_trains_on_what_the_shared_vllm_generates"]
    check(base, tmp_path, settings)
    (vllm,), (_, loaded) = shared.opened, shared.calls[0]
    assert (loaded["fast_inference"], loaded["gpu_memory_utilization"]) == (True, 0.3)
    assert vllm.did == ["sleep 1", "generate", "sleep 1", "remove", "generate", "sleep 1"]
    assert len(set(vllm.read)) == 2
    (params,) = {str(vars(one) | {"seed": 0, "max_tokens": 0}) for one in vllm.params}
    tokenizer = load_tokenizer(base)
    assert f"'stop_token_ids': [{tokenizer.eos_token_id}]" in params


@pytest.mark.parametrize("phase", ["sft", "grpo"])
def test_validation_is_on_the_vllm_below_the_policy(shared, settings, sets, base, tmp_path, phase):
    smoke = preset_params("smoke")
    engines = {"engine": "vllm", "gpu_memory_utilization": 0.4}
    params = smoke.model_copy(
        update={
            "model": settings,
            "rollout": smoke.rollout.model_copy(update=engines),
            "validation": smoke.validation.model_copy(update=engines),
        }
    )
    write_problems(tmp_path / "problems.jsonl", sets.sft[:16])
    for name, problems in sets.benchmarks.items():
        write_problems(tmp_path / f"{name}.jsonl", problems[:4])
    read = {"problems": tmp_path / "problems.jsonl", "base": base, "scratch": tmp_path}
    setup = sft_setup(params, **read) if phase == "sft" else grpo_setup(params, init=base, **read)
    validator = Validator(params, tmp_path, init=base, base=base)
    validator.watch(setup.trainer, stage=phase, steps=1, say=print)
    engine = validator.engine or validator.open_engine(setup.trainer.model)
    engine.sync(setup.trainer.model)
    assert set(validator.answers(engine)) == set(params.validation.sets)
    (vllm,), (_, loaded) = shared.opened, shared.calls[0]
    assert loaded["gpu_memory_utilization"] == 0.4
    assert "generate" in vllm.did


def test_a_shared_vllm_with_less_room_takes_no_longer_prompts(shared, settings, base):
    policy = trainable_policy(base, base=base, settings=settings, seed=0, memory_share=0.5)
    shared.opened[0].model_config.max_model_len = 8
    engine = open_engine("vllm", base, base=base, **settings.loading, batch_size=4, policy=policy)
    engine.sync(policy)
    with pytest.raises(UserError, match="8 positions"):
        engine.generate([[5] * 8], Sampling(num_completions=1, max_new_tokens=4, temperature=1.0))


def test_a_closed_engine_leaves_the_policy_its_weights(shared, settings, base):
    policy = trainable_policy(base, base=base, settings=settings, seed=0, memory_share=0.5)
    engine = open_engine("vllm", base, base=base, **settings.loading, batch_size=4, policy=policy)
    engine.sync(policy)
    engine.close()
    engine.close()
    assert not Path(shared.opened[0].read[0]).exists()
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate([[5]], Sampling(num_completions=1, max_new_tokens=4, temperature=1.0))
    assert policy(input_ids=torch.tensor([[5, 6]])).logits.isfinite().all()


def test_an_unsloth_that_quietly_opened_no_vllm_is_refused(calls, settings, base):
    with pytest.raises(UserError, match=r"rollout\.engine"):
        trainable_policy(base, base=base, settings=settings, seed=0, memory_share=0.5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"lora": {"rank": 0}}, r"model\.lora"),
        ({"dtype": "float32"}, r"model\.dtype"),
    ],
)
def test_what_cannot_share_weights_is_refused_by_params(model, message):
    content = YAML(typ="safe").load(compose_preset("s0-qwen3-4b"))
    for name, value in model.items():
        content["model"][name] = content["model"][name] | value if name == "lora" else value
    with pytest.raises(UserError, match=message):
        parse_params(content, origin="test")
    content["rollout"]["engine"] = content["validation"]["engine"] = "transformers"
    parse_params(content, origin="test")


def test_generating_gives_unsloths_training_mode_back(calls, settings, base):
    """Unsloth's `generate` turns checkpointing off meanwhile."""
    policy = trainable_policy(base, base=base, settings=settings, seed=0)
    engine = TransformersEngine(policy, load_tokenizer(base), batch_size=4)
    del calls[:]
    sampling = Sampling(num_completions=1, max_new_tokens=2, temperature=0.0)
    engine.generate([[5, 6]], sampling)
    assert [name for name, _ in calls] == ["for_training"]
    policy.eval()
    engine.generate([[5, 6]], sampling)
    assert [name for name, _ in calls] == ["for_training"]


def test_prompts_are_token_ids_with_tokenizers_that_are_patched(base, monkeypatch):
    """unsloth_zoo 2026.10.7 returns no dict by default (temporary_patches/misc.py)."""
    plain = PreTrainedTokenizerBase.apply_chat_template

    def patched(self: Any, *args: Any, return_dict: bool = False, **kwargs: Any) -> Any:
        return plain(self, *args, return_dict=return_dict, **kwargs)

    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", patched)
    tokenizer, messages = load_tokenizer(base), [{"role": "user", "content": "1 + 1"}]
    (prompt,) = encode(tokenizer, [messages])
    assert tokenizer.decode(prompt).count("1 + 1") == 1
    problem = Problem.create(problem="1 + 1", reference="2", solution="It is 2.")
    (row,) = sft_dataset([problem], tokenizer, prompt_format=prompt_format("boxed"), system="")
    assert row["input_ids"][: len(prompt)] != row["input_ids"]
    assert "It is 2." in tokenizer.decode(row["input_ids"])


def test_an_adapter_of_another_shape_is_refused(calls, settings, base, tmp_path):
    policy = trainable_policy(base, base=base, settings=settings, seed=0)
    save_policy(policy, load_tokenizer(base), tmp_path / "sft")
    fewer = settings.lora.model_copy(update={"target_modules": ("q_proj",)})
    other = settings.model_copy(update={"lora": fewer})
    with pytest.raises(UserError, match=r"model\.lora"):
        trainable_policy(tmp_path / "sft", base=base, settings=other, seed=0)


def test_without_unsloth_the_error_names_the_param():
    with pytest.raises(UserError, match=r"^model\.backend=unsloth.*"):
        unsloth._fast_language_model()


def python(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    unset = {*READ[True], *READ[False], *unsloth.ALLOCATOR}
    environment = {
        **{k: v for k, v in os.environ.items() if k not in unset},
        "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT))),
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


READ = {
    True: {
        "UNSLOTH_VLLM_STANDBY": "1",
        "UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE": "1",
        "UNSLOTH_COMPILE_LOCATION": "data/scratch/unsloth",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    },
    False: {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "UNSLOTH_COMPILE_LOCATION": "data/scratch/unsloth",
    },
}


@pytest.mark.parametrize("generates", [True, False])
def test_it_comes_before_what_it_patches_and_finds_its_settings(tmp_path, generates):
    (tmp_path / "unsloth.py").write_text(
        "import os, sys\n"
        "early = [n for n in ('torch', 'transformers', 'trl', 'peft') if n in sys.modules]\n"
        "values = {name: os.environ.get(name) for name in eval(os.environ['WANTED'])}\n"
        "print(early, values, flush=True)\n"
        "os._exit(0)\n"
    )
    wanted = READ[generates]
    code = (
        f"import os; os.environ['WANTED'] = {str(list(wanted))!r}\n"
        "from lib.engines.unsloth import import_first\n"
        f"import_first('unsloth', generates={generates})\n"
    )
    assert python(code, tmp_path).stdout == f"[] {wanted}\n"


def test_trl_keeps_its_own_trainers_where_unsloth_has_put_others(tmp_path):
    (tmp_path / "unsloth.py").write_text(
        "import trl, trl.trainer.grpo_trainer as module\n"
        "class FastLanguageModel: pass\n"
        "class Generated(trl.GRPOTrainer): pass\n"
        "trl.GRPOTrainer = trl.trainer.GRPOTrainer = module.GRPOTrainer = Generated\n"
    )
    code = (
        "from lib.engines.unsloth import import_first\n"
        "import_first('unsloth', generates=False)\n"
        "from lib.training.grpo.policy_gradient import PolicyGradientTrainer\n"
        "from trl.trainer import grpo_trainer\n"
        "print(any(base.__name__ == 'Generated' for base in PolicyGradientTrainer.__mro__))\n"
        "class Model:\n"
        "    is_gradient_checkpointing = True\n"
        "    def __getattr__(self, name): print('called', name); return lambda *a: None\n"
        "with grpo_trainer.disable_gradient_checkpointing(Model(), None): pass\n"
        "import_first('unsloth', generates=False)\n"
        "import trl; print(trl.GRPOTrainer is grpo_trainer.GRPOTrainer)\n"
    )
    assert python(code, tmp_path).stdout == "False\nTrue\n"


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", unsloth_contract.CHECKS)
def test_the_contract_for_real(tmp_path, name):
    """A process of its own imports Unsloth before transformers, which it patches."""
    for package in ("unsloth", "vllm")[: 1 + ("vllm" in name)]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    command = [sys.executable, "-m", "tests.lib.engines.unsloth_contract", name, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_importing_it_too_late_is_a_bug_that_crashes(tmp_path):
    (tmp_path / "unsloth.py").write_text("class FastLanguageModel: pass\n")
    code = (
        "import sys, types; sys.modules['trl'] = types.ModuleType('trl')\n"
        "from lib.engines.unsloth import import_first\n"
        "import_first('unsloth', generates=False)\n"
    )
    assert "RuntimeError: unsloth must be imported before trl" in python(code, tmp_path).stderr


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "expandable_segments:True None"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, "None max_split_size_mb:64"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, "backend:native None"),
    ],
)
def test_the_other_backend_sets_the_allocator_unless_it_is_set(environment, expected):
    """Nothing is imported yet; torch's allocator reads the setting when it starts."""
    code = (
        f"import os, sys; os.environ |= {environment}\n"
        "from lib.engines.unsloth import import_first\n"
        "import_first('transformers', generates=True)\n"
        f"print(*map(os.environ.get, {unsloth.ALLOCATOR}), 'UNSLOTH_VLLM_STANDBY' in os.environ)\n"
        "print({'unsloth', 'torch', 'transformers'} & set(sys.modules))\n"
    )
    assert python(code).stdout == f"{expected} False\nset()\n"


def test_stages_import_it_before_anything_heavy():
    for stage in ("sft", "grpo", "dpo", "preflight"):
        source = (ROOT / f"stages/{stage}.py").read_text("utf-8")
        source = source[source.rindex("\ndef ", 0, source.index("import_first(")) :]
        rooms = ("engines.runtime", "training", "planning")
        heavy = [source.find(f"from lib.{room}") for room in rooms if f"from lib.{room}" in source]
        assert 0 < source.find("import_first(") < min(heavy)
