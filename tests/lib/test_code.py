"""A stage's code: what its script can reach, by syntax and by bytes."""

from pathlib import Path

import pytest

from lib.artifacts import code
from lib.artifacts.code import stage_code, verifier_code
from lib.core.errors import UserError
from lib.training.phase.checkpoints import run_fingerprint
from tests.lib.report.runs import write_text

SCRIPT = '''"""Run."""

from lib.params import Params
from stages.options import reads


def main(size: int = 2) -> None:
    """Run it."""
    from lib.room import part  # late

    print(part.size * size)
'''

FILES = {
    "lib/core/errors.py": "import lib.unused",
    "lib/params/__init__.py": "from lib.params import model\nfrom lib.params.load import read",
    "lib/params/model.py": "import lib.unused",
    "lib/params/load.py": "x = 1",
    "lib/rewards/functions.py": "import reckon_verifier",
    "lib/rewards/stacks/tiny.py": "x = 1",
    "lib/rewards/stacks/s4.py": "x = 1",
    "lib/room/__init__.py": "",
    "lib/room/part.py": "from .beside import x\nTABLE = {'a': 'lib.lazy.a:A'}",
    "lib/room/beside.py": "import lib.rewards.functions\nrun = ['-m', 'lib.lazy.b']",
    "lib/room/table.yaml": "x: 1",
    "lib/room/templates/page.j2": "x",
    "lib/room/.table.yaml.swp": "x",
    "lib/lazy/a.py": "x = 1",
    "lib/lazy/b.py": "x = 1",
    "lib/unused/__init__.py": "x = 1",
    "reckon_verifier/__init__.py": "from reckon_verifier.sub import x",
    "reckon_verifier/sub.py": "x = 1",
    "reckon_verifier/rules.tsv": "x",
    "reckon_verifier/other.py": "x = 1",
    "plugins/rewards/mine.py": "from lib.plugged import x",
    "lib/plugged.py": "x = 1",
    "stages/options.py": "x = 1",
    "stages/other.py": "x = 1",
    "stages/run.py": SCRIPT,
}

SETTINGS = {"reward": {"stack": "tiny", "extra": ["plugins/rewards/mine.py:f"]}, "seed": 0}

REACHED = {
    *("lib/lazy/a.py", "lib/lazy/b.py", "lib/params/__init__.py", "lib/params/model.py"),
    *("lib/plugged.py", "lib/rewards/functions.py", "lib/rewards/stacks/tiny.py"),
    *("lib/room/__init__.py", "lib/room/beside.py", "lib/room/part.py", "lib/room/table.yaml"),
    *("lib/room/templates/page.j2", "plugins/rewards/mine.py", "reckon_verifier/__init__.py"),
    *("reckon_verifier/rules.tsv", "reckon_verifier/sub.py", "stages/run.py"),
}


@pytest.fixture
def house(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(code, "ROOT", tmp_path)
    for path, text in FILES.items():
        write_text(Path(path), text)


def test_exactly_what_a_script_reaches_is_its_code(house):
    hashes = stage_code("run", SETTINGS)
    assert set(hashes) == REACHED
    for path, text in FILES.items():
        write_text(Path(path), f"{text}\nchanged = 1")
        changed = {
            name for name, value in stage_code("run", SETTINGS).items() if value != hashes[name]
        }
        assert changed == {path} & REACHED
        write_text(Path(path), text)


@pytest.mark.parametrize(
    ("old", "new", "is_other"),
    [
        ('"""Run."""', "", False),
        ('    """Run it."""\n', "", False),
        ("  # late", "\n    # why", False),
        ("print(part.size * size)", "print(\n        (part.size) * size,\n    )", False),
        (": int = 2", ": int = 3", True),
        (": int = 2", ": int = 2.0", True),
        (": int = 2", ": int = True", True),
        ("part.size * size", "part.size + size", True),
        ("part.size * size", "-part.size * size", True),
        ("print(part", "print('', part", True),
    ],
)
def test_comments_layout_and_docstrings_are_not_code(house, old, new, is_other):
    def hashes():
        run = run_fingerprint("run", settings=SETTINGS, inputs={})
        return stage_code("run", SETTINGS), run

    before = hashes()
    assert old in SCRIPT
    write_text(Path("stages/run.py"), SCRIPT.replace(old, new))
    assert [one != other for one, other in zip(before, hashes(), strict=True)] == [is_other] * 2


def test_the_verifiers_hash_is_that_of_its_code(house):
    before = verifier_code()
    write_text(Path("reckon_verifier/sub.py"), "x = 1  # one")
    assert verifier_code() == before
    write_text(Path("reckon_verifier/rules.tsv"), "y")
    assert verifier_code() != before


def test_a_file_that_does_not_parse_is_named_with_its_line(house):
    write_text(Path("lib/room/part.py"), "x = 1\ny = (")
    with pytest.raises(UserError, match=r"lib/room/part\.py:2: "):
        stage_code("run", SETTINGS)
