"""What a file under `studies/` may say."""

import copy
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from ruamel.yaml import YAML

from lib.core.errors import UserError
from lib.params import Params
from lib.params.load import parse_params, parse_section, read_yaml
from lib.params.model import Checkpoint
from lib.params.section import Name, Section

STUDIES = Path("studies")

PLAIN = re.compile(r"[\w./:+-]+")

Value = Any
"""What YAML holds."""


class Variant(Section):
    """One way to train.

    Variants of the same `params` are one run for each seed, whose stages share what they can.
    """

    checkpoint: Checkpoint
    """Which checkpoint of its run is measured."""
    params: dict[str, Value] = Field(default_factory=dict)
    """Values by dotted key, in place of params.yaml's."""


class Contrast(Section):
    """Two variants on the same problems, seed by seed."""

    before: Name
    after: Name
    expect: Literal["better", "worse", "no difference"]
    """What the claim says of `after`."""
    measure: str = ""
    """In what; '' for pass@1 where there are samples."""

    @property
    def name(self) -> str:
        """Its key in a study's numbers."""
        return f"{self.before} to {self.after}"


class Study(Section):
    """An experiment that anyone can repeat."""

    claim: str
    """What the comparisons test, in a sentence."""
    source: str
    """Where it was claimed, like arXiv:2506.10947; '' for this project."""
    benchmark: str = ""
    """The set that is measured; '' for the first of evaluate.benchmarks."""
    seeds: Annotated[tuple[int, ...], Field(min_length=3)]
    variants: Annotated[dict[Name, Variant], Field(min_length=2)]
    comparisons: Annotated[tuple[Contrast, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for each in self.comparisons:
            for name in (each.before, each.after):
                if name not in self.variants:
                    known = ", ".join(self.variants)
                    raise ValueError(f"comparisons: no variant `{name}`; there are {known}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {list(self.seeds)}; expected different ones")
        return self


def study_file(name: str) -> Path:
    """The file of a study: a path, or a name in `studies/` with or without .yaml.

    Raises:
        UserError: there is none; lists those that there are.
    """
    for path in (Path(name), STUDIES / name, STUDIES / f"{name}.yaml"):
        if path.suffix == ".yaml" and path.is_file():
            return path
    known = ", ".join(sorted(file.stem for file in STUDIES.glob("*.yaml")))
    raise UserError(f"STUDY: no file {name}, nor {STUDIES / name}.yaml; there are {known}")


def load_study(path: Path) -> Study:
    """The study in a file, each variant's params checked.

    Raises:
        UserError: one line for each thing that is wrong with it.
    """
    content = read_yaml(path)
    study = parse_section(Study, content, origin=str(path))
    current = read_yaml(Path("params.yaml"))
    for variant_name, variant in study.variants.items():
        origin = f"{path}: variants.{variant_name}"
        evaluate = with_params(current, variant, origin=origin).evaluate
        if study.benchmark and study.benchmark not in evaluate.benchmarks:
            known = ", ".join(evaluate.benchmarks)
            raise UserError(f"{path}: benchmark: no `{study.benchmark}`; there are {known}")
        sampled = ["pass@1", f"pass@{evaluate.num_samples}"] if evaluate.num_samples else []
        measures = ["greedy", *sampled] if evaluate.greedy else sampled
        for each in study.comparisons:
            if each.measure and each.measure not in measures:
                known = ", ".join(measures)
                raise UserError(f"{path}: measure: no `{each.measure}`; there are {known}")
    return study


def with_params(content: dict[str, Any], variant: Variant, *, origin: str) -> Params:
    """Params.yaml's `content` with a variant's values.

    Raises:
        UserError: a key that params.yaml has not, or a value that it refuses.
    """
    changed: Any = copy.deepcopy(content)
    for dotted, value in variant.params.items():
        *sections, key = dotted.split(".")
        place = changed
        for section in sections:
            place = place.get(section, {}) if isinstance(place, dict) else {}
        if dotted == "seed":
            raise UserError(f"{origin}.params: `seed` is set by the study's `seeds`")
        if not isinstance(place, dict) or key not in place:
            raise UserError(f"{origin}.params: params.yaml has no key `{dotted}`")
        place[key] = value
    params = parse_params(changed, origin=origin)
    if variant.checkpoint not in params.evaluate.checkpoints:
        raise UserError(
            f"{origin}: checkpoint `{variant.checkpoint}` is not in evaluate.checkpoints "
            f"({', '.join(params.evaluate.checkpoints)}); set that in its params too"
        )
    return params


def hydra(value: Value) -> str:
    """A value as `dvc exp run --set-param` takes it."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{hydra(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(hydra, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    # Text that YAML would read as something else is quoted, as is text with other characters.
    return value if PLAIN.fullmatch(value) and YAML().load(value) == value else repr(value)
