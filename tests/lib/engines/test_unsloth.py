"""The Unsloth backend calls what there is, with arguments that its signatures name, and first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lib.engines import unsloth
from lib.engines.policy import load_tokenizer, save_policy, trainable_policy
from lib.errors import UserError
from lib.params import Params
from lib.params.model import Model
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format
from lib.trainers.sft import build_sft
from tests.lib.engines import fake_unsloth

ROOT = Path(__file__).parents[3]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> fake_unsloth.Calls:
    return fake_unsloth.install(monkeypatch)


@pytest.fixture
def settings(smoke: Params) -> Model:
    return smoke.model.model_copy(update={"backend": "unsloth"})


def test_a_model_is_loaded_and_adapted_as_params_say(
    calls: fake_unsloth.Calls, settings: Model, base: Path
) -> None:
    policy = trainable_policy(base, base=base, settings=settings, seed=7, memory_share=0.7)
    loaded, adapted = calls.of("from_pretrained"), calls.of("get_peft_model")
    assert loaded["model_name"] == str(base)
    assert loaded["load_in_4bit"] is False
    assert loaded["full_finetuning"] is False
    assert loaded["dtype"] == torch.float32
    assert (loaded["fast_inference"], loaded["gpu_memory_utilization"]) == (True, 0.7)
    assert (loaded["max_seq_length"], loaded["max_lora_rank"]) == (256, 8)
    assert (adapted["r"], adapted["lora_alpha"], adapted["random_state"]) == (8, 16, 7)
    assert adapted["target_modules"] == list(settings.lora.target_modules)
    assert loaded["kwargs"] == adapted["kwargs"] == {}
    assert policy.training
    assert [name for name, _ in calls] == ["from_pretrained", "get_peft_model", "for_training"]


def test_without_lora_all_weights_are_trained_and_nothing_is_adapted(
    calls: fake_unsloth.Calls, settings: Model, base: Path
) -> None:
    full = settings.model_copy(update={"lora": settings.lora.model_copy(update={"rank": 0})})
    trainable_policy(base, base=base, settings=full, seed=0)
    assert calls.of("from_pretrained")["full_finetuning"] is True
    assert calls.of("from_pretrained")["fast_inference"] is False
    assert [name for name, _ in calls] == ["from_pretrained"]


def test_sft_trains_saves_and_the_next_phase_goes_on_from_its_adapter(
    calls: fake_unsloth.Calls,
    settings: Model,
    base: Path,
    sets: GeneratedSets,
    smoke: Params,
    tmp_path: Path,
) -> None:
    trainer = build_sft(
        list(sets.sft)[:32],
        base=base,
        prompt_format=prompt_format(smoke.prompt.format),
        system="",
        sft=smoke.sft,
        model=settings,
        seed=0,
        scratch=tmp_path / "scratch",
    )
    trainer.args.max_steps = 2  # the first is at a learning rate of 0
    trainer.train()
    save_policy(trainer.model, load_tokenizer(base), tmp_path / "sft")
    again = trainable_policy(tmp_path / "sft", base=base, settings=settings, seed=1)
    trained = {n: w for n, w in trainer.model.named_parameters() if "lora_" in n}
    assert any(weight.any() for name, weight in trained.items() if "lora_B" in name)
    for name, weight in again.named_parameters():
        if "lora_" in name:
            assert torch.equal(weight, trained[name]), name


def test_an_adapter_of_another_shape_is_refused(
    calls: fake_unsloth.Calls, settings: Model, base: Path, tmp_path: Path
) -> None:
    policy = trainable_policy(base, base=base, settings=settings, seed=0)
    save_policy(policy, load_tokenizer(base), tmp_path / "sft")
    fewer = settings.lora.model_copy(update={"target_modules": ("q_proj",)})
    other = settings.model_copy(update={"lora": fewer})
    with pytest.raises(UserError, match=r"have no place in model\.lora of params"):
        trainable_policy(tmp_path / "sft", base=base, settings=other, seed=0)


def test_an_argument_that_a_version_does_not_name_is_refused() -> None:
    """The real functions take **kwargs and drop what they do not know."""

    def from_pretrained(model_name: str, **kwargs: object) -> None:
        raise AssertionError("called")

    with pytest.raises(UserError, match="from_pretrained has no argument max_lora_rank; install"):
        unsloth._exactly(from_pretrained, model_name="x", max_lora_rank=8)


def test_without_unsloth_the_error_is_one_line_that_names_the_param() -> None:
    with pytest.raises(UserError) as caught:
        unsloth._fast_language_model()
    assert "\n" not in caught.value.message
    assert "model.backend=unsloth: unsloth is not installed" in caught.value.message


def python(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **{k: v for k, v in os.environ.items() if k not in unsloth.ALLOCATOR},
        "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT))),
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("generates", "setting"),
    [(True, "UNSLOTH_VLLM_STANDBY=1"), (False, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")],
)
def test_it_is_imported_before_what_it_patches_and_finds_its_settings(
    tmp_path: Path, generates: bool, setting: str
) -> None:
    (tmp_path / "unsloth.py").write_text(
        "import os, sys\n"
        "early = [n for n in ('torch', 'transformers', 'trl', 'peft') if n in sys.modules]\n"
        "name, value = os.environ['WANTED'].split('=', 1)\n"
        "print('early', early, os.environ.get(name) == value)\n"
        "class FastLanguageModel: pass\n"
    )
    code = (
        f"import os; os.environ['WANTED'] = '{setting}'\n"
        "from lib.engines.unsloth import import_first\n"
        f"import_first('unsloth', generates={generates})\n"
    )
    assert python(code, tmp_path).stdout == "early [] True\n"


def test_importing_it_too_late_is_a_bug_that_crashes(tmp_path: Path) -> None:
    (tmp_path / "unsloth.py").write_text("class FastLanguageModel: pass\n")
    code = (
        "import sys, types; sys.modules['trl'] = types.ModuleType('trl')\n"
        "from lib.engines.unsloth import import_first\n"
        "import_first('unsloth', generates=False)\n"
    )
    assert "RuntimeError: unsloth must be imported before trl" in python(code, tmp_path).stderr


def test_the_other_backend_imports_nothing() -> None:
    code = (
        "import sys; from lib.engines.unsloth import import_first\n"
        "import_first('transformers', generates=True)\n"
        "print([n for n in ('unsloth', 'torch', 'transformers') if n in sys.modules])\n"
    )
    assert python(code).stdout == "[]\n"


SETTINGS = (
    "import os, sys; {first}\n"
    "from lib.engines.unsloth import import_first\n"
    "import_first('transformers', generates=True)\n"
    "names = ('PYTORCH_CUDA_ALLOC_CONF', 'PYTORCH_ALLOC_CONF', 'UNSLOTH_VLLM_STANDBY')\n"
    "print(*(os.environ.get(name) for name in names), 'torch' in sys.modules)\n"
)


def test_the_other_backend_gets_expandable_segments_before_torch_is_there() -> None:
    assert python(SETTINGS.format(first="")).stdout == "expandable_segments:True None None False\n"


def test_what_the_user_told_the_allocator_by_either_name_stays() -> None:
    new = "os.environ['PYTORCH_ALLOC_CONF'] = 'max_split_size_mb:64'"
    assert python(SETTINGS.format(first=new)).stdout == "None max_split_size_mb:64 None False\n"
    old = "os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:native'"
    assert python(SETTINGS.format(first=old)).stdout == "backend:native None None False\n"


def test_torch_reads_the_names_in_the_order_that_is_relied_on() -> None:
    import torch

    header = Path(torch.__file__).with_name("include") / "c10/cuda/CUDAAllocatorConfig.h"
    source = header.read_text("utf-8")
    old, new = (source.find(f'get_env("{name}")') for name in unsloth.ALLOCATOR)
    assert 0 < old < new


def test_stages_import_it_before_anything_heavy() -> None:
    for stage in ("sft", "grpo", "dpo", "memory_probe"):
        source = (ROOT / f"stages/{stage}.py").read_text("utf-8")
        heavy = min(source.find(f"from lib.{room}") for room in ("engines.runtime", "trainers"))
        assert 0 < source.find("import_first(") < heavy
