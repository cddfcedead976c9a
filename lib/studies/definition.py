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
    """In what, like pass@8 or `harder pass@8`; '' for pass@1 where there are samples."""

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
    benchmarks: tuple[str, ...] = ()
    """The sets that are measured; none for the first of evaluate.benchmarks."""
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

    def named(self, benchmark: str, measure: str) -> str:
        """A measure's name: that of the first set goes without saying."""
        return measure if benchmark == self.benchmarks[0] else f"{benchmark} {measure}"


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
    """The study in a file, each variant's params checked and its sets filled in.

    Raises:
        UserError: one line for each thing that is wrong with it.
    """
    content = read_yaml(path)
    study = parse_section(Study, content, origin=str(path))
    current = read_yaml(Path("params.yaml"))
    sets = study.benchmarks or parse_params(current, origin="params.yaml").evaluate.benchmarks[:1]
    study = study.model_copy(update={"benchmarks": sets})
    for variant_name, variant in study.variants.items():
        origin = f"{path}: variants.{variant_name}"
        evaluate = with_params(current, variant, origin=origin).evaluate
        most = evaluate.num_samples
        sampled = [f"pass@{k}" for k in sorted({1, min(8, most), most})] if most else []
        measures = ["greedy", *sampled] if evaluate.greedy else sampled
        measures = [study.named(of, measure) for of in study.benchmarks for measure in measures]
        with_grpo = [of.params for of in study.variants.values() if of.checkpoint == "grpo"]
        measured = study.variants.values()
        if all(of.checkpoint in ("sft", "grpo") and of.params in with_grpo for of in measured):
            measures.append("training")
        compared = [each.measure for each in study.comparisons if each.measure]
        for key, names, known in (
            ("benchmarks", study.benchmarks, evaluate.benchmarks),
            ("measure", compared, measures),
        ):
            for name in names:
                if name not in known:
                    there = ", ".join(known)
                    raise UserError(f"{path}: {key}: no `{name}`; there are {there}")
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
