"""Fixtures for the tests of several packages."""

import functools
import gc
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import settings

from lib import params
from lib.artifacts import hash_path, write_json
from lib.params import presets
from lib.problems.generated import synthetic_sets
from lib.prompts import prompt_format, save_system
from lib.prompts.formats import conversation
from tests.vllm_server import vllm_server

ROOT = Path(__file__).parents[1]


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    # Not `splitlines`: a text may hold a line separator of Unicode.
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def run_command(
    *command: str | Path, cwd: Path = ROOT, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end and capture its output; `environment` adds to this process's."""
    # Under `make test` the outer make's flags would change the output.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        command,
        cwd=cwd,
        env=inherited | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def run_python(
    code: str, *arguments: str | Path, cwd: Path = ROOT, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run code in a fresh process and capture its output."""
    return run_command(sys.executable, "-c", code, *arguments, cwd=cwd, **environment)


_FORKS = """
import json, os, sys
setup, codes = json.loads(sys.argv[1])
names = {}
exec(setup, names)
for number, code in enumerate(codes):
    if os.fork() == 0:
        for stream in (1, 2):
            os.dup2(os.open(f"{sys.argv[2]}/{number}.{stream}", os.O_CREAT | os.O_WRONLY), stream)
        status = 0
        try:
            exec(code, names)
        except BaseException:
            status = 1
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        os._exit(status)
for _ in codes:
    os.wait()
"""


def run_in_forks(setup: str, codes: Sequence[str], folder: Path, **environment: str) -> list[str]:
    """Run each code in a fork of one fresh process after `setup`; return their outputs.

    The forks run at once. Importing a library in `setup` pays for it once.
    """
    folder.mkdir(exist_ok=True)
    done = run_python(_FORKS, json.dumps([setup, codes]), folder, **environment)
    assert done.returncode == 0, done.stderr
    return ["".join((folder / f"{n}.{s}").read_text() for s in "12") for n in range(len(codes))]


def write_script(path: Path, text: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


# As in stages: a bar that an error leaves open writes to a closed file in some later test.
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"

# A machine under load is slow, not wrong.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


S1 = "s1-qwen2.5-0.5b"
"""The preset that trains all weights with GRPO on one card."""

LONG = ("tests/docs/", "tests/pipeline/", "tests/lib/training/test_run.py")
"""Files that run whole pipelines: first, so that no worker runs one at the end by itself."""


LONG_LIMIT_S = 3600
"""Limit of a slow test in seconds; others have pyproject's `timeout`."""


def pytest_configure() -> None:
    """Take the kernels of stages: tests compare them, and torch's first operation decides.

    A preset without options is composed once: its params are frozen, its text is a string.
    """
    from lib.models.runtime import use_common_cpu_kernels

    use_common_cpu_kernels()
    # A shell's background job ignores Ctrl-C, which tests send to themselves.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    names = {*presets.preset_names()}

    def composed_once(plain: Callable[..., Any]) -> Callable[..., Any]:
        once = functools.cache(plain)
        return lambda preset, **options: (
            plain(preset, **options) if options or preset not in names else once(preset)
        )

    presets.preset_params = params.preset_params = composed_once(presets.preset_params)
    presets.compose_preset = params.compose_preset = composed_once(presets.compose_preset)


def pytest_collection_finish() -> None:
    """Exempt what imports made from collections: transformers asks for one after each training."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep files together and in order, the long ones before the others; limit each test.

    Of the cases of a test with `fast_cases(n)`, those after the first n are slow.
    """
    cases: Counter[str] = Counter()
    for item in items:
        if marker := item.get_closest_marker("fast_cases"):
            name = item.nodeid.partition("[")[0]
            cases[name] += 1
            if cases[name] > marker.args[0]:
                item.add_marker("slow")
        if any(item.get_closest_marker(name) for name in ("slow", "vllm", "gpu")):
            item.add_marker(pytest.mark.timeout(LONG_LIMIT_S))
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture(scope="session")
def smoke():
    """Load the smoke preset's params."""
    return params.preset_params("smoke")


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory):
    """Reproduce and commit the smoke preset in a clone, once for all workers; list its stages."""
    from tests.pipeline.test_end_to_end import clone_with_smoke

    here = tmp_path_factory.getbasetemp()
    shared = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here
    with FileLock(shared / "smoke.lock"):
        if not (shared / "smoke.json").exists():
            made = clone_with_smoke(shared / "smoke")
            stages = made.repro()
            made.commit("Run smoke")
            write_json(shared / "smoke.json", stages)
    return shared


@pytest.fixture
def in_root(monkeypatch):
    """Make the checkout's root the working directory."""
    monkeypatch.chdir(ROOT)
    yield ROOT


@pytest.fixture(scope="session")
def lm_eval(tmp_path_factory):
    """Install lm-eval into an environment on top of this one, and return its Python."""
    folder = tmp_path_factory.mktemp("lm_eval")
    python, uv = folder / "bin/python", (sys.executable, "-m", "uv")
    made = run_command(*uv, "venv", "--allow-existing", "--python", sys.executable, folder)
    assert made.returncode == 0, made.stderr
    package = ("lm_eval==0.4.13", "--constraints", "requirements/cpu.txt")
    done = run_command(*uv, "pip", "install", "--python", python, *package)
    if re.search("Failed to fetch|network connectivity|error sending request", done.stderr):
        pytest.skip("lm-eval 0.4.13 cannot be installed: the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    (site,) = folder.glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (site / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return python


def run_lm_eval(python: Path, export: Path, task: str, out: Path) -> Path:
    """Evaluate a model by its task files; return the folder of the log."""
    options = (
        f"--model hf --model_args pretrained=.,dtype=float32 --device cpu --tasks {task} "
        "--include_path tasks --apply_chat_template --log_samples --output_path"
    )
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(out / "hub")}
    ran = run_command(python, "-m", "lm_eval", *options.split(), out, cwd=export, **offline)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return out


@pytest.fixture(scope="session")
def sets():
    """Generate the smoke preset's problems."""
    smoke = params.preset_params("smoke")
    return synthetic_sets(smoke.prepare.synthetic, seed=smoke.seed)


@pytest.fixture(scope="session")
def base(smoke, sets, tmp_path_factory):
    """Write the smoke preset's tokenizer, random weights and empty system prompt."""
    from lib.models.tiny import write_tiny

    folder = tmp_path_factory.mktemp("models") / "base"
    write_tiny(
        folder,
        sets.sft,
        prompt_format=prompt_format(smoke.prompt.format),
        model=smoke.model,
        seed=smoke.seed,
    )
    save_system(folder, "")
    made = hash_path(folder)
    yield folder
    assert hash_path(folder) == made, "a test wrote into the base model, which all tests share"


@pytest.fixture(scope="session")
def prompts(base, sets):
    """Encode six prompts of different lengths, unsorted by length."""
    from lib.engines.base import encode
    from lib.models.pretrained import load_tokenizer

    texts = [conversation(problem.problem, system="") for problem in sets.grpo[:6]]
    return encode(load_tokenizer(base), texts)


@pytest.fixture(scope="session")
def vllm_url(base, tmp_path_factory):
    """Start a vLLM server of the smoke preset's base model."""
    log = tmp_path_factory.mktemp("server") / "log"
    preset = ROOT / "lib/presets/tiny-cpu.yaml"
    with vllm_server(ROOT, params=preset, model=base, log=log) as address:
        yield address


@pytest.fixture(scope="session")
def full(smoke):
    """Return the smoke preset's model section without LoRA."""
    lora = smoke.model.lora.model_copy(update={"rank": 0})
    return smoke.model.model_copy(update={"lora": lora})
