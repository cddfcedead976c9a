"""Where sources' files have to be, and a folder for Arrow files."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lib.artifacts import SCRATCH

RAW = Path("data/raw")


def how_to_import(path: Path, *, raw: Path = RAW) -> str:
    """Why a path elsewhere is refused, and the command that imports it."""
    return (
        f"{path} is not under {raw}/, so an edit of it would re-run nothing; "
        f"import it with `dvc import-url {path} {raw}/{path.name}` "
        f"(or copy a small file there and commit it) and name {raw}/{path.name} in params.yaml"
    )


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for Arrow files that lasts as long as the block.

    Not under /tmp, which may be memory: the point of those files is that text takes none.
    """
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="prepare-", dir=SCRATCH) as folder:
        yield Path(folder)
