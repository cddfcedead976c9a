"""A stage that another Python runs says what to do instead of computing with other versions."""

from pathlib import Path

import pytest

from lib.environment import check_environment
from lib.errors import UserError


def test_the_locked_environment_passes(in_root: Path) -> None:
    check_environment()


def test_another_version_is_named_beside_the_locked_one(in_root: Path, tmp_path: Path) -> None:
    lock = (in_root / "requirements/cpu.txt").read_text(encoding="utf-8")
    other = tmp_path / "cpu.txt"
    other.write_text(lock.replace("trl==1.14.0", "trl==9.9.9"), encoding="utf-8")
    with pytest.raises(UserError, match=r"trl 1\.14\.0 \(locked: 9\.9\.9\)\. Run `make setup`"):
        check_environment(other)
