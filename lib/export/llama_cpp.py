"""GGUF types that only llama.cpp can make, through its `llama-quantize` where a user has it."""

import shutil
import subprocess
from pathlib import Path

from lib.errors import UserError

OWN = ("f16", "q8_0")
"""Types that the `gguf` package makes by itself."""

TOOL = "llama-quantize"

PLACES = ("~/.unsloth/llama.cpp", "llama.cpp", "llama.cpp/build/bin")
"""Where Unsloth puts llama.cpp when it first writes a GGUF, and where a clone builds it."""


def find_quantizer(kind: str) -> Path | None:
    """The tool that makes `kind`, None where none is needed.

    Raises:
        UserError: it is needed and not there.
    """
    if kind in {*OWN, "none"}:
        return None
    folders = (Path(place).expanduser() for place in PLACES)
    places = (shutil.which(TOOL), *(shutil.which(TOOL, path=folder) for folder in folders))
    found = next(filter(None, places), None)
    if not found:
        raise UserError(
            f"export.gguf: {kind} needs llama.cpp's `{TOOL}`, which is neither on the PATH nor in "
            f"{', '.join(PLACES)}; build llama.cpp, or set export.gguf to one of {', '.join(OWN)}"
        )
    return Path(found)


def quantize(source: Path, to: Path, *, kind: str, tool: Path) -> None:
    """Make a file of `kind` from one in f16.

    Raises:
        UserError: the tool failed; says what it said last.
    """
    ran = subprocess.run(
        [tool, source, to, kind.upper()], capture_output=True, text=True, check=False
    )
    if ran.returncode or not to.is_file():
        said = (ran.stderr.strip() or ran.stdout.strip() or "nothing").splitlines()[-1]
        raise UserError(f"export.gguf: {tool.name} failed on {kind}: {said}")
