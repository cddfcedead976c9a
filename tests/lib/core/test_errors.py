"""What ends a stage: one line where it is the user's to mend, a traceback for a bug."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT


def fails_with(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", f"import stages\n{code}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    return ran.stderr


@pytest.mark.parametrize(
    "code",
    [
        "open('/dev/full', 'w').write('x' * 10**6)",
        "raise RuntimeError('I/O error: No space left on device (os error 28)')",
    ],
)
def test_a_full_disk_is_one_line(code: str) -> None:
    lines = [line for line in fails_with(code).splitlines() if "Exception ignored" not in line]
    assert lines[0].startswith("Error: the disk is full")
    assert "Traceback" not in lines[0]


def test_a_bug_is_a_traceback() -> None:
    assert "Traceback" in fails_with("raise RuntimeError('a bug')")
