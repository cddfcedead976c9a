"""llama.cpp's tool for the small GGUF types, looked for before anything is trained. No torch."""

import shutil
from pathlib import Path

from lib.errors import UserError

OWN_TYPES = ("f16", "q8_0")
"""Types that the `gguf` package makes by itself."""

TOOL = "llama-quantize"

PLACES = ("~/.unsloth/llama.cpp", "llama.cpp", "llama.cpp/build/bin")
"""Where Unsloth puts llama.cpp when it first writes a GGUF, and where a clone builds it."""


def find_quantizer(kind: str) -> Path | None:
    """The tool that makes `kind`, None where none is needed.

    Raises:
        UserError: it is needed and not there.
    """
    if kind in {*OWN_TYPES, "none"}:
        return None
    folders = (None, *(Path(place).expanduser() for place in PLACES))
    tool = next(filter(None, (shutil.which(TOOL, path=folder) for folder in folders)), None)
    if not tool:
        raise UserError(
            f"export.gguf: {kind} needs llama.cpp's `{TOOL}`, which is neither on the PATH nor in "
            f"{', '.join(PLACES)}; build llama.cpp, or set export.gguf to one of "
            f"{', '.join(OWN_TYPES)}"
        )
    return Path(tool)
