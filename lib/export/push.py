"""Put the export on the Hugging Face Hub: what goes there, whether it may, and how it fails."""

import csv
import dataclasses
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError
from transformers import TrainerState

from lib.artifacts import hash_path, read_json
from lib.core.errors import UserError
from lib.params.model import HUB_ID

CARD = "README.md"

TRAINING = ("metrics", "curves", "provenance")
"""Folders of reports on how training went; they go to `training/` beside the model."""


@dataclasses.dataclass(frozen=True)
class Upload:
    """One file of the repository: where it goes, and the file or the text that goes there."""

    path: str
    content: Path | bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size


def collect(export: Path, *, reports: Path, phase: str, commit: str) -> list[Upload]:
    """Every file that a push uploads, by path.

    Args:
        export: what the stage wrote; its card gets the commit.
        reports: metrics, curves and provenance of the run.
        phase: that the exported checkpoint comes from; one without curves has no trainer state.
        commit: that the export was made at.
    """
    uploads = []
    for path in _files(export):
        name = path.relative_to(export).as_posix()
        uploads.append(Upload(name, _with_commit(path, commit) if name == CARD else path))
    for folder in TRAINING:
        for path in _files(reports / folder):
            uploads.append(Upload(f"training/{path.relative_to(reports).as_posix()}", path))
    if (reports / f"curves/{phase}.csv").is_file():
        uploads.append(Upload("training/trainer_state.json", trainer_state(reports, phase)))
    return uploads


def trainer_state(reports: Path, phase: str) -> bytes:
    """A phase's curves as the file that a `transformers.Trainer` keeps of them.

    The trainer's own has clocks in it, so that no stage writes it.
    """
    log = [
        {name: float(value) for name, value in row.items() if value}
        for curve in (phase, f"{phase}_validation")
        if (path := reports / f"curves/{curve}.csv").is_file()
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    ]
    log = [{**point, "step": int(point["step"])} for point in log]
    log.sort(key=lambda point: point["step"])
    steps = int(max((point["step"] for point in log), default=0))
    state = TrainerState(global_step=steps, max_steps=steps, log_history=log)
    content = json.dumps(dataclasses.asdict(state), indent=2, sort_keys=True)
    return f"{content}\n".encode()


def check_current(
    export: Path, *, provenance: Path, checkpoint: Path, settings: Mapping[str, Any]
) -> None:
    """Refuse to publish anything but what was verified, made from what is here now.

    Raises:
        UserError: nothing is exported, or it was edited, or checkpoint or params are newer.
    """
    if not (export / CARD).is_file() or not provenance.is_file():
        raise UserError(f"{export}: nothing is exported yet; run `dvc repro export`")
    recorded = read_json(provenance)
    if not checkpoint.is_dir():
        raise UserError(
            f"{checkpoint} is missing, so that the export cannot be compared with it; "
            "run `dvc checkout`, or `dvc repro export`"
        )
    if hash_path(checkpoint) != recorded["inputs"]["checkpoint"]:
        raise UserError(f"{export} is older than {checkpoint}; run `dvc repro export`")
    if settings != recorded["settings"]:
        raise UserError(f"{export} was made with other params; run `dvc repro export`")
    if hash_path(export) != recorded["export"]:
        raise UserError(
            f"{export} was changed after it was verified; run `dvc checkout {export} --force`"
        )


def check_repo(repo: str) -> None:
    """Refuse what is no repository's id.

    Raises:
        UserError: names what was expected.
    """
    if not HUB_ID.fullmatch(repo):
        raise UserError(
            f"HUB_REPO={repo}: expected owner/name, for example: make push HUB_REPO=me/my-model"
        )


def current_commit() -> str:
    """The commit of the checkout, with a word where tracked files differ from it."""
    # No tag matches, so that it is the hash.
    describe = ["describe", "--always", "--exclude=*", "--abbrev=40"]
    ran = subprocess.run(
        ["git", *describe, "--dirty= and uncommitted changes"],
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()


def push(uploads: Sequence[Upload], *, repo: str, token: str, private: bool) -> str:
    """Upload all files in one commit to `repo`, which is made if it is not there; its address.

    Raises:
        UserError: no network, no such owner, or a token without the right to write there.
    """
    operations = [CommitOperationAdd(each.path, each.content) for each in uploads]
    hub = HfApi(token=token)
    try:
        address = hub.create_repo(repo, private=private, exist_ok=True)
        hub.create_commit(repo, operations, commit_message="Publish an export of reckon")
    except OfflineModeIsEnabled:
        raise UserError("HF_HUB_OFFLINE is set; unset it to push") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in {401, 403} or isinstance(error, RepositoryNotFoundError):
            raise UserError(
                f"the Hub refuses to write to {repo} (HTTP {status}); expected HF_TOKEN to be a "
                "token with write access to it: https://huggingface.co/settings/tokens"
            ) from None
        reason = _first_line(error.server_message or error, token)
        raise UserError(f"the Hub answered HTTP {status} ({reason}); nothing was pushed") from None
    except (httpx.HTTPError, OSError) as error:
        reason = _first_line(error, token)
        raise UserError(f"the Hub cannot be reached ({reason}); nothing was pushed") from None
    return str(address)


def _first_line(error: object, token: str) -> str:
    """Whatever a message quotes, without the token."""
    line = f"{error}".strip().partition("\n")[0] or type(error).__name__
    return line.replace(token, "***")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")


def _with_commit(card: Path, commit: str) -> bytes:
    text = card.read_text(encoding="utf-8")
    return f"{text}\nMade at commit `{commit}`.\n".encode()
