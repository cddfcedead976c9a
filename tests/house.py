"""The project's size, without comments and docstrings: `make check` prints it."""

import ast
import io
import subprocess
import tokenize
from pathlib import Path

from ruamel.yaml import YAML

from lib.params.schema import by_dotted_key

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


def main() -> None:
    """Print the totals."""
    dag = Path("dvc.yaml").read_text(encoding="utf-8")
    deps = [dep for stage in YAML(typ="safe").load(dag)["stages"].values() for dep in stage["deps"]]
    code = [dep for dep in deps if not dep.startswith(("data/", "${"))]
    print(f"product: {size_of('lib', 'stages', 'plugins')}; tests: {size_of('tests')}")  # noqa: T201
    params = YAML(typ="safe").load(Path("params.yaml").read_text(encoding="utf-8"))
    num_params = len(by_dotted_key(params)) + len(params["optimizer"])
    print(  # noqa: T201
        f"dvc.yaml: {len(dag.splitlines())} lines, {len(code)} code entries; params: {num_params}"
    )


if __name__ == "__main__":
    main()
