"""The project's size, without comments and docstrings: `make check` prints it."""

import ast
import io
import subprocess
import tokenize
from pathlib import Path

LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def num_tokens(code: str) -> int:
    """Count the tokens of Python source without layout, comments and docstrings."""
    texts: set[int] = set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                texts.update(range(node.lineno, (node.end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return sum(token.type not in LAYOUT and token.start[0] not in texts for token in tokens)


def size_of(*folders: str) -> str:
    """Count tokens and files below `folders`, of tracked files only."""
    listed = subprocess.run(["git", "ls-files", *folders], stdout=subprocess.PIPE, text=True)
    files = [Path(name) for name in listed.stdout.split() if name.endswith(".py")]
    tokens = sum(num_tokens(file.read_text(encoding="utf-8")) for file in files)
    return f"{tokens:,} tokens in {len(files)} files"


if __name__ == "__main__":
    print(f"product: {size_of('lib', 'stages', 'plugins')}; tests: {size_of('tests')}")  # noqa: T201
