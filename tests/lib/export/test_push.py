"""A push sends verified files only, and shows the token nowhere."""

import hashlib
from pathlib import Path

import huggingface_hub.constants
import pytest
from click.testing import CliRunner, Result
from transformers import TrainerState

from commands.push import main
from lib.artifacts import hash_path, write_json
from lib.export.push import collect
from lib.params import load_params
from tests.conftest import ROOT, run_command
from tests.lib.export.fake_hub import fake_hub

TOKEN = "hf_fakeTOKENthatNobodyMaySee"
PROVENANCE = "reports/provenance/export.json"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Write a finished run's folders: checkpoint, export, reports."""
    contents = {
        "models/grpo/model.safetensors": "weights",
        "models/export/README.md": "---\nlicense: mit\n---\n# A model\n",
        "models/export/config.json": "{}",
        "models/export/model.safetensors": "merged weights",
        "models/export/adapter/adapter_model.safetensors": "adapter",
        "reports/metrics/evaluate/grpo.json": "{}",
        "reports/curves/grpo.csv": "step\n1\n",
        "reports/report.html": "not for the Hub",
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr("lib.export.push.LOCK", tmp_path / "dvc.lock")
    record(tmp_path)
    return tmp_path


def lock(run: Path) -> None:
    """Write the hashes of the reports as DVC does."""
    files = [path for path in (run / "reports").rglob("*.*") if path.suffix != ".html"]
    outs = []
    for path in files:
        md5 = hashlib.md5(path.read_bytes()).hexdigest()
        outs.append({"path": path.relative_to(run).as_posix(), "md5": md5})
    write_json(run / "dvc.lock", {"stages": {"all": {"outs": outs}}})


def record(run: Path, **changed: object) -> None:
    """Write the provenance of an export as the stage does."""
    params = load_params(ROOT / "params.yaml").model_dump(mode="json")
    content = {
        "settings": params,
        "inputs": {"checkpoint": hash_path(run / "models/grpo")},
        "export": hash_path(run / "models/export"),
    }
    write_json(run / PROVENANCE, {**content, **changed})
    lock(run)


def push(run: Path, *more: str, repo: str = "me/model", token: str = TOKEN) -> Result:
    return CliRunner().invoke(
        main,
        [f"--models={run / 'models'}", f"--reports={run / 'reports'}", repo, *more],
        env={"HF_TOKEN": token},
        catch_exceptions=False,
    )


def push_to(
    address: str, run: Path, monkeypatch: pytest.MonkeyPatch, *, expected: int = 0
) -> Result:
    """Push to a Hub at `address`; huggingface_hub has read the environment by now."""
    for name, value in {"ENDPOINT": address, "HF_HUB_OFFLINE": False}.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    done = push(run)
    assert done.exit_code == expected, done.output
    assert_unseen(run, done.output)
    return done


def assert_unseen(run: Path, *outputs: str) -> None:
    """Assert that the token is in no output and in no file."""
    assert not any(TOKEN in text for text in outputs)
    files = [path for path in run.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_all_goes_in_one_commit_and_the_token_in_its_header(run, monkeypatch):
    with fake_hub() as hub:
        done = push_to(hub.url, run, monkeypatch)
    assert set(hub.files) == {
        "README.md",
        "config.json",
        "model.safetensors",
        "adapter/adapter_model.safetensors",
        "training/metrics/evaluate/grpo.json",
        "training/curves/grpo.csv",
        "training/provenance/export.json",
        "training/trainer_state.json",
    }
    assert hub.files["model.safetensors"] == b"merged weights"
    assert hub.created[0]["visibility"] == "private"
    assert hub.tokens == {f"Bearer {TOKEN}"}
    head = run_command("git", "rev-parse", "HEAD").stdout.strip()
    assert f"# A model\n\nMade at commit `{head}" in hub.files["README.md"].decode()
    assert "commit" not in (run / "models/export/README.md").read_text()
    assert f"8 files, {sum(map(len, hub.files.values())):,} bytes uploaded to" in done.stdout
    assert TOKEN.encode() not in b"".join(hub.files.values())


def one_line(run: Path, *more: str, **options: str) -> str:
    """Push, expect failure, and return its one line on stderr."""
    shown = push(run, *more, **options)
    assert (shown.exit_code, shown.stdout) == (1, "")
    (line,) = shown.stderr.splitlines()
    return line


def test_what_git_refuses_is_quoted(run, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(run))
    assert "git: fatal: not a git repository" in one_line(run, "--dry-run")


@pytest.mark.parametrize("is_link", [False, True])
def test_a_forged_number_is_not_pushed(run, is_link):
    curve = run / "reports/curves/grpo.csv"
    curve.unlink()
    if is_link:
        curve.symlink_to(run / "models/export/config.json")
    else:
        curve.write_text("step\n2\n")
    assert "reports/curves/grpo.csv is not the file that dvc.lock" in one_line(run, "--dry-run")


def test_what_no_stage_wrote_stays_here(run):
    (run / "reports/metrics/notes.json").write_text("mine")
    (run / "reports/curves/key.csv").symlink_to("/etc/hostname")
    (run / "reports/provenance/elsewhere").symlink_to("/etc")
    out = push(run, "--dry-run").output
    assert "training/metrics/evaluate/grpo.json" in out
    assert not any(name in out for name in ("notes", "key.csv", "elsewhere"))
    (run / "models/export/key.txt").symlink_to("/etc/hostname")
    assert "was changed after it was verified" in push(run, "--dry-run").output


def test_transformers_reads_the_curves_as_trainer_state(run):
    curves = run / "reports/curves"
    (curves / "grpo.csv").write_text("step,kl,loss\n1,,0.5\n2,0.1,0.25\n")
    (curves / "grpo_validation.csv").write_text("step,answer_accuracy\n0,0.0\n2,1.0\n")
    lock(run)
    uploads = collect(run / "models/export", reports=run / "reports", phase="grpo", commit="c")
    (state,) = (each for each in uploads if each.path_in_repo == "training/trainer_state.json")
    (run / "trainer_state.json").write_bytes(state.path_or_fileobj)
    read = TrainerState.load_from_json(str(run / "trainer_state.json"))
    assert (read.global_step, read.max_steps) == (2, 2)
    assert read.log_history == [
        {"step": 0, "answer_accuracy": 0.0},
        {"step": 1, "loss": 0.5},
        {"step": 2, "kl": 0.1, "loss": 0.25},
        {"step": 2, "answer_accuracy": 1.0},
    ]
    untrained = collect(run / "models/export", reports=run / "reports", phase="base", commit="c")
    assert "training/trainer_state.json" not in {each.path_in_repo for each in untrained}


@pytest.mark.parametrize(
    ("status", "words"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (400, "Bearer ***")]
)
def test_a_refusal_is_one_line_without_the_token(status, words, run, monkeypatch):
    with fake_hub(status) as hub:
        (line,) = push_to(hub.url, run, monkeypatch, expected=1).stderr.splitlines()
    assert words in line


def test_without_a_network_there_is_one_line(run, monkeypatch):
    with fake_hub() as hub:
        gone = hub.url
    (line,) = push_to(gone, run, monkeypatch, expected=1).stderr.splitlines()
    assert "cannot be reached" in line


def test_a_dry_run_lists_files_and_needs_no_token(run):
    shown = push(run, "--dry-run", repo="", token="")
    assert shown.exit_code == 0
    assert "model.safetensors" in shown.stdout
    assert "nothing was sent" in shown.stdout
    assert "report.html" not in shown.stdout


@pytest.mark.parametrize("token", ["", " ", "hf_\u00e9", "hf_a\nb"])
def test_no_token_is_one_line(token, run):
    shown = push(run, token=token)
    assert shown.exit_code == 1
    (line,) = shown.stderr.splitlines()
    assert "HF_TOKEN" in line
    assert not token.strip() or token not in shown.output


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda run: (run / "models/grpo/model.safetensors").write_text("trained on"),
            "is older than",
        ),
        (lambda run: (run / "models/export/config.json").write_text("{1: 2}"), "was changed after"),
        (lambda run: record(run, settings={"seed": 77}), "other params"),
        (lambda run: (run / "models/export").rename(run / "elsewhere"), "nothing is exported"),
        (lambda run: (run / "models/grpo").rename(run / "elsewhere"), "is missing"),
        *(
            (lambda run, text=text: run.joinpath(PROVENANCE).write_text(text), "dvc repro")
            for text in ("{}", '{"inputs": {}}', "[" * 9000)
        ),
    ],
)
def test_what_was_not_verified_is_not_pushed(spoil, words, run):
    spoil(run)
    assert words in one_line(run, "--dry-run")


@pytest.mark.parametrize(
    "repo", ["", "model", "me/model/x", "https://huggingface.co/me/model", "me/a--b"]
)
def test_a_repository_is_an_owner_and_a_name(repo, run):
    assert f"repository `{repo}`" in one_line(run, repo=repo)
