"""What docs/presets.md fits to 16 GB is planned below it."""

import dataclasses
import functools
import operator
import re
from collections.abc import Iterator

from ruamel.yaml import YAML

from lib.models.gpu import Gpu
from lib.params import Params, parse_params, preset_params
from lib.planning.doctor import findings
from lib.planning.memory import shape_of
from lib.planning.plan import phases_of
from tests.conftest import ROOT
from tests.lib.planning.test_doctor import SERVER

DOCS = ROOT / "docs/presets.md"


def on_16_gb() -> Iterator[tuple[str, Params]]:
    """Yield the presets in the docs' T4 table, with their changes."""
    rows = re.findall(r"^\| `(s[14]\S*)`(.*?) \| `(\S+=.*?)` \|$", DOCS.read_text("utf-8"), re.M)
    for name, also, changes in rows:
        for preset in (name, *(name + other for other in re.findall("`(.+?)`", also))):
            content = preset_params(preset).model_dump(mode="json")
            for key, value in (change.split("=") for change in changes.split()):
                *parents, last = key.split(".")
                section = functools.reduce(operator.getitem, parents, content)
                section[last] = YAML(typ="safe").load(value)
            yield preset, parse_params(content, origin=preset)


def test_what_the_docs_fit_to_16_gb_is_planned_below_15():
    planned = dict(on_16_gb())
    assert len(planned) == 3
    t4 = Gpu("Tesla T4", "580.1", 16 * 10**9, 15 * 10**9, 7.5)
    machine = dataclasses.replace(SERVER, gpus=(t4,), free_memory=2**36)
    for preset, params in planned.items():
        for phase in phases_of(params, shape_of(params.model)):
            assert phase.skipped or phase.bytes_on(t4.memory) <= 15 * 10**9, preset
        texts = [each.text for each in findings(params, machine) if each.weight != "result"]
        assert not [text for text in texts if "make fetch" not in text]
