"""Change lib/ at random, one operator, number or condition at a time, and count those noticed.

python -m bench.mutants [--n 40] [--seed 0] [--rooms stats,grading]

Each change is made in a scratch copy, where the fast tests of its room run. A survivor is a change
that no test notices: a property without a test, or a change without a meaning.
"""

import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lib.stats import mean_estimate, share_interval

ROOT = Path(__file__).parents[1]
FAST = "not slow and not gpu and not network and not vllm"
TIMEOUT_S = 1800
"""Seconds for a room's tests; an endless loop counts as noticed."""

PAIRS = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.In, ast.NotIn),
    (ast.Is, ast.IsNot),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.And, ast.Or),
]
SWAPS: dict[type[ast.AST], Any] = dict([*PAIRS, *(pair[::-1] for pair in PAIRS)])


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes to change, in one order; neither types nor the words of an error."""
    if isinstance(tree, ast.Raise | ast.arg | ast.JoinedStr):
        return
    is_number = isinstance(tree, ast.Constant) and type(tree.value) in (int, float)
    is_operation = type(getattr(tree, "op", None)) in SWAPS and not isinstance(tree, ast.UnaryOp)
    if is_number or is_operation or isinstance(tree, ast.Compare | ast.If | ast.IfExp):
        yield tree
    for name, value in ast.iter_fields(tree):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from places(child)


def change(node: Any) -> str:
    """Change one node in its tree; return its text before and after."""
    before = ast.unparse(getattr(node, "test", node))
    kind = type(node)
    if kind is ast.Compare:
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif kind is ast.Constant:
        node.value += 1
    elif kind in (ast.If, ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    else:
        node.op = SWAPS[type(node.op)]()
    return f"{before}  →  {ast.unparse(getattr(node, 'test', node))}"


def tests_of(file: Path) -> str:
    """Return the tests of a file's room."""
    room = ROOT / "tests" / file.parent
    while not room.exists():  # lib/rewards/stacks: lib/rewards
        room = room.parent
    return str(room.relative_to(ROOT)) if file.parts[1] != "artifacts" else "tests/lib"


def is_noticed(copy: Path, tests: str) -> bool:
    """Return True if a test fails in the copy."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]
    try:
        ended = subprocess.run(
            [*command, "-m", FAST, tests],
            cwd=copy,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    return ended.returncode != 0


@click.command(help=__doc__)
@click.option("--n", default=40, help="Changes.")
@click.option("--seed", default=0, help="Another seed makes other changes.")
@click.option("--rooms", default="", help="Folders of lib/, comma-separated; default: all.")
def main(n: int, seed: int, rooms: str) -> None:
    """Print each survivor, and the share of noticed changes."""
    files = sorted(path.relative_to(ROOT) for path in ROOT.glob("lib/*/**/*.py"))
    files = [file for file in files if not rooms or file.parts[1] in rooms.split(",")]
    sources = {file: (ROOT / file).read_text("utf-8") for file in files}
    # Places are equally likely: a long file gets more changes.
    every = [
        (file, number)
        for file in files
        for number, _ in enumerate(places(ast.parse(sources[file])))
    ]
    noticed = 0
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "reckon"
        subprocess.run(["git", "clone", "--quiet", ROOT, copy], check=True)
        # A clone lacks uncommitted changes.
        for room in ("lib", "stages", "tests"):
            shutil.copytree(ROOT / room, copy / room, dirs_exist_ok=True)
        picked = random.Random(seed).sample(every, n)
        # A test that fails anyway would count every change as noticed.
        for tests in sorted({tests_of(file) for file, _ in picked}):
            if is_noticed(copy, tests):
                raise click.ClickException(f"{tests} fails without a change; `pytest {tests}`")
        for file, number in picked:
            tree = ast.parse(sources[file])
            node: Any = list(places(tree))[number]
            line, text = node.lineno, change(node)
            (copy / file).write_text(ast.unparse(tree), "utf-8")
            dead = is_noticed(copy, tests_of(file))
            (copy / file).write_text(sources[file], "utf-8")
            noticed += dead
            click.echo(f"{'noticed ' if dead else 'survived'} {file}:{line}: {text}")
    interval = share_interval(mean_estimate([1.0] * noticed + [0.0] * (n - noticed)))
    click.echo(f"noticed {noticed} of {n} [{interval.low:.2f}, {interval.high:.2f}] (seed {seed})")


if __name__ == "__main__":
    main()
