"""A phase that is skipped passes its checkpoint on, and says so."""

from pathlib import Path

import pytest

from lib.artifacts import hash_path, read_json
from lib.trainers.run import Outputs, run_phase


def test_a_skipped_phase_passes_the_checkpoint_on_and_says_so(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(scratch: Path) -> None:
        raise AssertionError("a skipped phase must not build a trainer")

    outputs = Outputs(
        model=tmp_path / "models/sft",
        metrics=tmp_path / "metrics.json",
        curve=tmp_path / "curve.csv",
        provenance=tmp_path / "provenance.json",
    )
    run_phase(
        never,  # type: ignore[arg-type]
        init=base,
        skipped="sft.num_epochs is 0",
        outputs=outputs,
        settings={},
        inputs={"base": base},
    )
    assert hash_path(outputs.model) == hash_path(base)
    assert capsys.readouterr().out.startswith("skipped: sft.num_epochs is 0; ")
    assert read_json(outputs.provenance)["skipped"] is True
    assert read_json(outputs.metrics) == {"step": 0}
    assert outputs.curve.read_text(encoding="utf-8") == "step\n"
