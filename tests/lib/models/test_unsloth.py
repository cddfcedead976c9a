"""The Unsloth backend is imported first, and gets only arguments of its signatures."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from lib.artifacts.problems import Problem, write_problems
from lib.core.errors import UserError
from lib.engines.base import encode, open_engine
from lib.engines.transformers import TransformersEngine
from lib.models import unsloth
from lib.models.load import trainable_policy
from lib.models.pretrained import load_tokenizer
from lib.models.save import save_policy
from lib.prompts import prompt_format
from lib.training.phase.validation import Validator
from lib.training.sft import sft_dataset
from tests.conftest import ROOT, run_command, run_python
from tests.lib.engines import fake_vllm
from tests.lib.engines.contract import greedy, random_sampling
from tests.lib.models import fake_unsloth, unsloth_contract
from tests.lib.params.changes import accepted
from tests.lib.training.runs import changed
from tests.lib.training.steps import plain_grpo, plain_sft


@pytest.fixture
def calls(monkeypatch):
    return fake_unsloth.install(monkeypatch)


@pytest.fixture
def shared(monkeypatch):
    """Let `fast_inference` open a fake vLLM."""
    fake_vllm.install(monkeypatch)
    return fake_unsloth.install(monkeypatch, fake_vllm.FakeLlm)


@pytest.fixture
def settings():
    return unsloth_contract.settings("float32")


@pytest.fixture
def load(base, settings):
    """Load and adapt a checkpoint, by default the base model."""

    def policy(checkpoint=base, *, settings=settings, seed=0, **options):
        return trainable_policy(checkpoint, base=base, settings=settings, seed=seed, **options)

    return policy


def test_a_model_is_loaded_and_adapted_as_params_say(calls, load, settings, base):
    policy = load(seed=7)
    loaded, adapted = map(calls.arguments, ("from_pretrained", "get_peft_model"))
    checkpointing = {"use_gradient_checkpointing": "unsloth", "kwargs": {}}
    assert loaded == loaded | checkpointing | {
        "model_name": str(base),
        "load_in_4bit": False,
        "full_finetuning": False,
        "fast_inference": False,
        "dtype": torch.float32,
        "max_seq_length": 256,
        "max_lora_rank": 8,
    }
    assert adapted == adapted | checkpointing | {
        "r": 8,
        "lora_alpha": 16,
        "random_state": 7,
        "target_modules": list(settings.lora.target_modules),
    }
    assert policy.training
    assert [name for name, _ in calls] == ["from_pretrained", "get_peft_model", "for_training"]


def test_without_lora_all_weights_are_trained(calls, load, settings):
    full = settings.model_copy(update={"lora": settings.lora.model_copy(update={"rank": 0})})
    load(settings=full)
    ((name, arguments),) = calls
    assert (name, arguments["full_finetuning"]) == ("from_pretrained", True)
    assert arguments["fast_inference"] is False


@pytest.mark.parametrize("name", [n for n in unsloth_contract.CHECKS if "vllm" not in n])
def test_the_contract_on_the_fake(calls, settings, base, tmp_path, name):
    unsloth_contract.CHECKS[name](base, tmp_path, settings)


def test_grpo_trains_on_what_the_vllm_below_its_policy_generates(shared, settings, base, tmp_path):
    check = unsloth_contract.CHECKS["grpo_trains_on_what_the_shared_vllm_generates"]
    check(base, tmp_path, settings)
    (vllm,), (_, loaded) = shared.opened, shared[0]
    assert (loaded["fast_inference"], loaded["gpu_memory_utilization"]) == (True, 0.3)
    assert vllm.did == ["sleep 1", "generate", "sleep 1", "remove", "generate", "sleep 1"]
    assert len(set(vllm.read)) == 2
    (params,) = {str(vars(one) | {"seed": 0, "max_tokens": 0}) for one in vllm.params}
    tokenizer = load_tokenizer(base)
    assert f"'stop_token_ids': [{tokenizer.eos_token_id}]" in params


@pytest.mark.parametrize("phase", ["sft", "grpo"])
def test_validation_is_on_the_vllm_below_the_policy(
    shared, smoke, settings, sets, base, tmp_path, phase
):
    engines = {"engine": "vllm", "gpu_memory_utilization": 0.4}
    params = changed(smoke, {"rollout": engines, "validation": engines})
    params = params.model_copy(update={"model": settings})
    for name, problems in sets.benchmarks.items():
        write_problems(tmp_path / f"{name}.jsonl", problems[:4])
    build = {"sft": plain_sft, "grpo": plain_grpo}[phase]
    trainer = build(sets.sft[:16], base, params, tmp_path)
    validator = Validator(params, tmp_path, init=base, base=base)
    validator.watch(trainer, stage=phase, steps=1)
    engine = validator.engine or validator.open_engine(trainer.model)
    engine.sync(trainer.model)
    assert set(validator.answers(engine)) == set(smoke.validation.sets)
    (vllm,), (_, loaded) = shared.opened, shared[0]
    assert loaded["gpu_memory_utilization"] == 0.4
    assert "generate" in vllm.did


def test_a_shared_vllm_with_less_room_takes_no_longer_prompts(shared, load, settings, base):
    policy = load(memory_share=0.5)
    (vllm,) = shared.opened
    vllm.model_config.max_model_len = 8
    engine = open_engine("vllm", base, base=base, **settings.loading, batch_size=4, policy=policy)
    engine.sync(policy)
    with pytest.raises(UserError, match="8 positions"):
        engine.generate([[5] * 8], random_sampling())


def test_a_closed_engine_leaves_the_policy_its_weights(shared, load, settings, base):
    policy = load(memory_share=0.5)
    engine = open_engine("vllm", base, base=base, **settings.loading, batch_size=4, policy=policy)
    engine.sync(policy)
    engine.close()
    engine.close()
    (vllm,) = shared.opened
    assert not Path(vllm.read[0]).exists()
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate([[5]], random_sampling())
    assert policy(input_ids=torch.tensor([[5, 6]])).logits.isfinite().all()


def test_an_unsloth_that_quietly_opened_no_vllm_is_refused(calls, load):
    with pytest.raises(UserError, match=r"rollout\.engine"):
        load(memory_share=0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"model.lora.rank": 0}, r"model\.lora"), ({"model.dtype": "float32"}, r"model\.dtype")],
)
def test_what_cannot_share_weights_is_refused_by_params(changes, message):
    with pytest.raises(UserError, match=message):
        accepted(changes, "s0-qwen3-4b")
    engines = {f"{section}.engine": "transformers" for section in ("rollout", "validation")}
    accepted(changes | engines, "s0-qwen3-4b")


def test_generating_gives_unsloths_training_mode_back(calls, load, base):
    """Unsloth's `generate` turns checkpointing off meanwhile."""
    policy = load()
    engine = TransformersEngine(policy, load_tokenizer(base), batch_size=4)
    del calls[:]
    engine.generate([[5, 6]], greedy())
    assert [name for name, _ in calls] == ["for_training"]
    policy.eval()
    engine.generate([[5, 6]], greedy())
    assert [name for name, _ in calls] == ["for_training"]


def test_prompts_are_token_ids_with_tokenizers_that_are_patched(base, monkeypatch):
    """unsloth_zoo 2026.10.7 returns no dict by default (temporary_patches/misc.py)."""
    plain = PreTrainedTokenizerBase.apply_chat_template

    def patched(self, *args, return_dict=False, **kwargs):
        return plain(self, *args, return_dict=return_dict, **kwargs)

    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", patched)
    tokenizer, messages = load_tokenizer(base), [{"role": "user", "content": "1 + 1"}]
    (prompt,) = encode(tokenizer, [messages])
    assert tokenizer.decode(prompt).count("1 + 1") == 1
    problem = Problem.create(problem="1 + 1", reference="2", solution="It is 2.")
    (row,) = sft_dataset([problem], tokenizer, prompt_format=prompt_format("boxed"), system="")
    assert row["input_ids"][: len(prompt)] != row["input_ids"]
    assert "It is 2." in tokenizer.decode(row["input_ids"])


def test_an_adapter_of_another_shape_is_refused(calls, load, settings, base, tmp_path):
    save_policy(load(), load_tokenizer(base), tmp_path / "sft")
    fewer = settings.lora.model_copy(update={"target_modules": ("q_proj",)})
    other = settings.model_copy(update={"lora": fewer})
    with pytest.raises(UserError, match=r"model\.lora"):
        load(tmp_path / "sft", settings=other)


def test_without_unsloth_the_error_names_the_param():
    with pytest.raises(UserError, match=r"^model\.backend=unsloth.*"):
        unsloth._fast_language_model()


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


@pytest.fixture
def python(tmp_path, monkeypatch):
    """Run code beside a stand-in for the module `unsloth`, with none of its settings made."""
    for name in {*READ[True], *READ[False], *unsloth.ALLOCATOR}:
        monkeypatch.delenv(name, raising=False)

    def run(code, *, module="class FastLanguageModel: pass\n", **environment):
        (tmp_path / "unsloth.py").write_text(module)
        return run_python(code, PYTHONPATH=str(tmp_path), **environment)

    return run


@pytest.mark.parametrize("generates", [True, False])
def test_it_comes_before_what_it_patches_and_finds_its_settings(python, generates):
    module = (
        "import os, sys\n"
        "early = [n for n in ('torch', 'transformers', 'trl', 'peft') if n in sys.modules]\n"
        "values = {name: os.environ.get(name) for name in eval(os.environ['WANTED'])}\n"
        "print(early, values, flush=True)\n"
        "os._exit(0)\n"
    )
    code = (
        "from lib.models.unsloth import import_first\n"
        f"import_first('unsloth', generates={generates})\n"
    )
    wanted = READ[generates]
    done = python(code, module=module, WANTED=str(list(wanted)))
    assert done.stdout == f"[] {wanted}\n"


@pytest.mark.slow
def test_trl_keeps_its_own_trainers_where_unsloth_has_put_others(python):
    module = (
        "import trl, trl.trainer.grpo_trainer as module\n"
        "class FastLanguageModel: pass\n"
        "class Generated(trl.GRPOTrainer): pass\n"
        "trl.GRPOTrainer = trl.trainer.GRPOTrainer = module.GRPOTrainer = Generated\n"
    )
    code = (
        "from lib.models.unsloth import import_first\n"
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
    assert python(code, module=module).stdout == "False\nTrue\n"


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", unsloth_contract.CHECKS)
def test_the_contract_for_real(tmp_path, name):
    """A process of its own imports Unsloth before transformers, which it patches."""
    for package in ("unsloth", "vllm")[: 1 + ("vllm" in name)]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    module = "tests.lib.models.unsloth_contract"
    done = run_command(sys.executable, "-m", module, name, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]


def test_importing_it_too_late_is_a_bug_that_crashes(python):
    code = (
        "import sys, types; sys.modules['trl'] = types.ModuleType('trl')\n"
        "from lib.models.unsloth import import_first\n"
        "import_first('unsloth', generates=False)\n"
    )
    assert "RuntimeError: unsloth must be imported before trl" in python(code).stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "expandable_segments:True None"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, "None max_split_size_mb:64"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, "backend:native None"),
    ],
)
def test_the_other_backend_sets_the_allocator_unless_it_is_set(python, environment, expected):
    """Nothing is imported yet; torch's allocator reads the setting when it starts."""
    code = (
        "import os, sys\n"
        "from lib.models.unsloth import import_first\n"
        "import_first('transformers', generates=True)\n"
        f"print(*map(os.environ.get, {unsloth.ALLOCATOR}), 'UNSLOTH_VLLM_STANDBY' in os.environ)\n"
        "print({'unsloth', 'torch', 'transformers'} & set(sys.modules))\n"
    )
    assert python(code, **environment).stdout == f"{expected} False\nset()\n"


def test_stages_import_it_before_anything_heavy():
    for file in ("stages/sft", "stages/grpo", "stages/dpo", "commands/memory_probe"):
        source = (ROOT / f"{file}.py").read_text("utf-8")
        source = source[source.rindex("\ndef ", 0, source.index("import_first(")) :]
        rooms = ("models.runtime", "training", "planning")
        heavy = [source.find(f"from lib.{room}") for room in rooms if f"from lib.{room}" in source]
        assert 0 < source.find("import_first(") < min(heavy)
