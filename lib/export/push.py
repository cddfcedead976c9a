"""Upload the export and the run's reports to the Hugging Face Hub, if they are up to date."""

import csv
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import (
    CommitOperationAdd,
    HfApi,
)
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from ruamel.yaml import YAML
from transformers import TrainerState

from lib.artifacts import ROOT, hash_path, read_json
from lib.core.errors import UserError, first_line
from lib.core.git import git
from lib.params.model import HUB_ID

CARD = "README.md"
LOCK = ROOT / "dvc.lock"

TRAINING = ("metrics", "curves", "provenance")
"""Folders of `reports/`; push uploads them to `training/` beside the model."""


def collect(export: Path, *, reports: Path, phase: str, commit: str) -> list[CommitOperationAdd]:
    """List all files that a push uploads, with their paths in the repository.

    Args:
        export: the exported model; the commit is added to its card.
        reports: folder with metrics, curves and provenance of the run.
        phase: the exported checkpoint's training phase; without curves there is no trainer state.
        commit: the checkout's commit.

    Raises:
        UserError: a file of the run is not the one that its stage wrote.
    """
    stages = YAML(typ="safe").load(LOCK)["stages"].values()
    # Outputs of stages, such as "reports/metrics/sft.json" → MD5. No other files of the folder
    # `reports` are uploaded, since they may be somebody's own.
    outs = {out["path"]: out["md5"] for stage in stages for out in stage["outs"]}
    uploads = []
    for path in _files(export):
        name = path.relative_to(export).as_posix()
        content: Path | bytes = path
        if name == CARD:
            content = path.read_bytes() + f"\nMade at commit `{commit}`.\n".encode()
        uploads.append(CommitOperationAdd(name, content))
    for folder in TRAINING:
        for path in _files(reports / folder):
            if md5 := outs.get(path.relative_to(reports.parent).as_posix()):
                if hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != md5:
                    raise UserError(
                        f"{path} is not the file that dvc.lock records; run `dvc repro`, or "
                        f"`git checkout {path}`"
                    )
                name = f"training/{path.relative_to(reports).as_posix()}"
                uploads.append(CommitOperationAdd(name, path))
    # Its curves were compared above.
    if f"{reports.name}/curves/{phase}.csv" in outs and (reports / f"curves/{phase}.csv").is_file():
        state = trainer_state(reports, phase)
        uploads.append(CommitOperationAdd("training/trainer_state.json", state))
    return uploads


def trainer_state(reports: Path, phase: str) -> bytes:
    """Convert a phase's curves into a `trainer_state.json` of `transformers.Trainer`.

    The trainer's own file contains clock times, which would change the hash of a checkpoint.
    """
    log: list[dict[str, Any]] = []
    for curve in (phase, f"{phase}_validation"):
        path = reports / f"curves/{curve}.csv"
        if path.is_file():
            for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
                point = {name: float(value) for name, value in row.items() if value}
                log.append({**point, "step": int(point["step"])})
    # One log has both curves, as transformers has training and evaluation in one log.
    log.sort(key=lambda point: point["step"])
    steps = max((point["step"] for point in log), default=0)
    state = TrainerState(global_step=steps, max_steps=steps, log_history=log)
    content = json.dumps(dataclasses.asdict(state), indent=2, sort_keys=True)
    return f"{content}\n".encode()


def check_current(
    export: Path, *, provenance: Path, checkpoint: Path, settings: Mapping[str, Any]
) -> None:
    """Refuse an export that is not the verified one of the current checkpoint and params.

    Args:
        export: the exported model.
        provenance: file with the params, and the hashes of checkpoint and export, when it was made.
        checkpoint: the checkpoint that is exported now.
        settings: all current params, as JSON.

    Raises:
        UserError: nothing is exported, the checkpoint is missing, checkpoint or params differ from
            those of the export, or the export was edited.
    """
    if not (export / CARD).is_file() or not provenance.is_file():
        raise UserError(f"{export}: nothing is exported yet; run `dvc repro export`")
    recorded = read_json(provenance)
    if not checkpoint.is_dir():
        raise UserError(
            f"{checkpoint} is missing, so that the export cannot be compared with it; "
            "run `dvc checkout`, or `dvc repro export`"
        )
    # Hashes are compared and not file times, since a checkout changes all times.
    if hash_path(checkpoint) != recorded.get("inputs", {}).get("checkpoint"):
        raise UserError(f"{export} is older than {checkpoint}; run `dvc repro export`")
    if settings != recorded.get("settings"):
        raise UserError(f"{export} was made with other params; run `dvc repro export`")
    if hash_path(export) != recorded.get("export"):
        raise UserError(
            f"{export} was changed after it was verified; run `dvc checkout {export} --force`"
        )


def check_repo(repo: str) -> None:
    """Refuse any text but a repository id, owner/name.

    Raises:
        UserError: `repo` is not owner/name, or the Hub allows no such name.
    """
    if not HUB_ID.fullmatch(repo):
        raise UserError(
            f"repository `{repo}`: expected owner/name, for example: ./reckon push me/my-model"
        )
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"repository `{repo}`: {first_line(error)}") from None


def current_commit() -> str:
    """Return the checkout's commit; with " and uncommitted changes" if tracked files differ.

    Raises:
        UserError: there is no repository, or it belongs to another user and git refuses it.
    """
    # `--exclude=*`: without a matching tag, `git describe --always` prints the hash.
    describe = ["describe", "--always", "--exclude=*", "--abbrev=40"]
    return git(*describe, "--dirty= and uncommitted changes")


def push(uploads: Sequence[CommitOperationAdd], *, repo: str, token: str, private: bool) -> str:
    """Upload all files in one commit to `repo`, create it if missing, and return its address.

    Raises:
        UserError: no network, no such owner, or a token without the right to write there.
    """
    hub = HfApi(token=token)
    try:
        address = hub.create_repo(repo, private=private, exist_ok=True)
        # One commit, so that an upload that breaks off leaves the repository unchanged.
        hub.create_commit(repo, uploads, commit_message="Publish an export of reckon")
    except OfflineModeIsEnabled:
        raise UserError("HF_HUB_OFFLINE is set; unset it to push") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        # For a private repository that the token may not see, the Hub answers 404
        # (RepositoryNotFoundError), not 403.
        if status in {401, 403} or isinstance(error, RepositoryNotFoundError):
            raise UserError(
                f"the Hub refuses to write to {repo} (HTTP {status}); expected HF_TOKEN to be a "
                "token with write access to it: https://huggingface.co/settings/tokens"
            ) from None
        reason = _without_token(error.server_message or error, token)
        raise UserError(f"the Hub answered HTTP {status} ({reason}); nothing was pushed") from None
    except (httpx.HTTPError, OSError) as error:
        reason = _without_token(error, token)
        raise UserError(f"the Hub cannot be reached ({reason}); nothing was pushed") from None
    return str(address)


def _without_token(error: object, token: str) -> str:
    # h11 quotes a header that it refuses: "Illegal header value b'Bearer hf_…'".
    return first_line(error).replace(token, "***")


def _files(folder: Path) -> list[Path]:
    # Hidden files are left out: .gitignore, which DVC writes beside outputs.
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
