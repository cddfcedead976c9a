"""Repositories of the Hugging Face Hub: fetched once at a commit, read from disk from then on.

`make fetch` writes each repository that params.yaml names to `data/hub`, one folder per commit, and
nothing after it needs the network. No stage depends on that folder: the commit, which is in
params.yaml, says what is in it. Where a repository was not fetched so, the Hub's own cache
(`HF_HOME`) and then the Hub are asked.
"""

import dataclasses
import errno
import hashlib
import platform
import re
from pathlib import Path
from typing import Any, Literal

import httpx
import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lib.core.errors import UserError
from lib.core.process import installed_version
from lib.params.data import HubSource
from lib.params.model import FLASH_KERNEL, HUB_ID

FETCHED = Path("data/hub")
"""Git-ignored, and a dependency of no stage."""

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
"""No pickled weights: loading those can run code."""

MODEL_FILES = (*WEIGHTS, "*.json", "*.jinja", "*.txt", "*.model")

FLASH_VERSION = "v3"
"""Branch of the kernel's major version that transformers 5.17 asks for."""

CUDA = "cu130"
"""That the locked torch is built for."""

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclasses.dataclass(frozen=True)
class Repository:
    """Files of one repository at one commit.

    Attributes:
        kind: what the Hub keeps it under.
        name: `owner/name`.
        revision: a commit; a branch or '' stands for one that `make fetch` looks up.
        files: globs of what is needed; () for all.
        named_by: the key of params.yaml that names it, for messages.
    """

    kind: Literal["model", "dataset", "kernel"]
    name: str
    revision: str
    files: tuple[str, ...]
    named_by: str

    def __str__(self) -> str:
        return f"{self.name}@{self.revision[:12]}" if self.revision else self.name

    @property
    def folder(self) -> Path:
        """Where `fetch` puts it; another choice of files has another folder."""
        part = hashlib.sha256("\n".join(self.files).encode()).hexdigest()[:8]
        name = "--".join([*self.name.split("/"), self.revision, *([part] if self.files else [])])
        # A queued experiment runs in a copy of the checkout below it (.dvc/tmp/exps), without this.
        here = Path.cwd()
        roots = (place for place in (here, *here.parents) if (place / FETCHED).is_dir())
        return next(roots, here) / FETCHED / f"{self.kind}s" / name


def is_on_hub(name: str, revision: str) -> bool:
    """Whether `model.name` is an id on the Hub, and no folder."""
    return bool(revision or (HUB_ID.fullmatch(name) and not Path(name).is_dir()))


def model_repository(name: str, revision: str) -> Repository:
    """A model on the Hub, without weights that could run code."""
    return Repository("model", name, revision, files=MODEL_FILES, named_by="model.revision")


def repository_of(source: HubSource) -> Repository:
    """The repository that a split is in."""
    files = (source.files,) if source.files else ()
    return Repository("dataset", source.hub, source.revision, files=files, named_by="prepare")


def kernel_repository(commit: str = "") -> Repository:
    """The flash attention kernel, in the builds for this torch on CUDA; '' for the commit of the
    version that transformers takes.

    All builds are some gigabytes. `kernels` (0.16, variants.py) accepts those of torch's CUDA that
    are named after torch's version or a stable ABI that is no newer, and those of no version.
    """
    major, minor, *_ = installed_version("torch").split(".")
    here = f"{CUDA}-{platform.machine()}-linux"
    abis = [f"torch-stable-abi{major}{number}-{here}" for number in range(9, int(minor) + 1)]
    builds = (f"torch{major}{minor}-*{here}", *abis, "torch-cuda")
    return Repository(
        "kernel",
        FLASH_KERNEL,
        commit or FLASH_VERSION,
        files=tuple(f"build/{build}/*" for build in builds),
        named_by="model.attention",
    )


FAILURES = (httpx.HTTPError, HFValidationError, OSError)
"""What the Hub's client raises."""


def find(repository: Repository) -> Path:
    """The folder that holds a repository's files: fetched, in the Hub's cache, or from the Hub.

    Raises:
        UserError: no commit is named, there is no such repository or commit, access was not
            granted, or it is not here and the Hub cannot be reached.
    """
    if not COMMIT.fullmatch(repository.revision):
        raise UserError(
            f"{repository.named_by}: `{repository}` has no commit, and its branch may move; "
            "run `make fetch`, which looks it up and writes it into params.yaml"
        )
    return repository.folder if repository.folder.is_dir() else download(repository)


def is_here(repository: Repository) -> bool:
    """Whether it was fetched, or the Hub's cache holds its commit."""
    if repository.folder.is_dir():
        return True
    try:
        huggingface_hub.snapshot_download(local_files_only=True, **_request(repository))
    except FAILURES:
        return False
    return True


def download(repository: Repository) -> Path:
    """The folder of the Hub's own cache that holds a repository, from the Hub if need be.

    Raises:
        UserError: as `find`, but for the commit: a branch is taken as it is now.
    """
    try:
        return Path(huggingface_hub.snapshot_download(**_request(repository)))
    except FAILURES as error:
        unreachable = _explained(repository, error)
    try:
        return Path(
            huggingface_hub.snapshot_download(local_files_only=True, **_request(repository))
        )
    except FAILURES:
        raise unreachable from None


def look_up(repository: Repository) -> tuple[str, int]:
    """The commit that a repository's revision is at now, and the bytes that `fetch` would bring.

    Raises:
        UserError: as `find`.
    """
    try:
        files = huggingface_hub.snapshot_download(
            dry_run=True, local_dir=_partial(repository), **_request(repository)
        )
    except FAILURES as error:
        raise _explained(repository, error) from error
    if not files:
        needed = "none of the files needed"
        if repository.kind == "kernel":
            needed = f"no build for this torch on {CUDA}; set model.attention: sdpa"
        raise UserError(f"{repository.named_by}: `{repository}` has {needed}")
    return files[0].commit_hash, sum(file.file_size or 0 for file in files if file.will_download)


def fetch(repository: Repository) -> Path:
    """Bring a repository into `data/hub`; one that was interrupted resumes, a whole one stays.

    Raises:
        UserError: as `find`.
    """
    folder, partial = repository.folder, _partial(repository)
    if not folder.is_dir():
        try:
            huggingface_hub.snapshot_download(local_dir=partial, **_request(repository))
        except FAILURES as error:
            raise _explained(repository, error) from error
        partial.rename(folder)
    return folder


def _partial(repository: Repository) -> Path:
    """Where it lies until it is whole: a folder without the dot needs no second look."""
    return repository.folder.with_name(f".{repository.folder.name}.partial")


def _request(repository: Repository) -> dict[str, Any]:
    return {
        "repo_id": repository.name,
        "repo_type": repository.kind,
        "revision": repository.revision or None,
        "allow_patterns": list(repository.files) or None,
    }


def _explained(repository: Repository, error: Exception) -> UserError:
    """What a failure of the Hub's client means, and the remedy."""
    place = f"{repository.named_by}: `{repository}`"
    match error:
        case GatedRepoError():
            reason = (
                "access has to be granted; accept the terms on its page and run `hf auth login`"
            )
        case RepositoryNotFoundError() | RevisionNotFoundError() | HFValidationError():
            reason = "no such repository or revision on the Hub"
        case OSError(errno=errno.ENOSPC):
            reason = f"the disk that holds {FETCHED} is full; make room and run `make fetch` again"
        case _:
            reason = "not (all) on this machine, and the Hub cannot be reached"
            if repository.revision:
                reason += f"; run `make fetch` where it can be, and bring the folder {FETCHED} here"
    return UserError(f"{place}: {reason}")
