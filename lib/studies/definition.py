"""The schema of a study file, `studies/<name>.yaml`, and its checks against params.yaml."""

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from hydra.core.override_parser.types import Quote, QuotedString
from pydantic import Field

from lib.core.errors import UserError
from lib.params import Params, preset_params
from lib.params.load import parse_params, parse_section, read_yaml
from lib.params.model import Checkpoint
from lib.params.section import Name, Section

STUDIES = Path("studies")

# A dash joins the names of variants that share a run.
VariantName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$")]


VARIANT = "variant:"
"""Prefix of a param's value that names another variant: it becomes the path of that variant's
checkpoint of the same seed, as a teacher or a model to start from."""


class Variant(Section):
    """Changes to the committed params, and the checkpoint to measure.

    Variants with the same `params` share one run per seed.
    """

    checkpoint: Checkpoint
    """The checkpoint to measure, of the run with these params."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Values by dotted key; they replace those of params.yaml."""

    @property
    def inputs(self) -> dict[str, str]:
        """The params whose value is another variant's checkpoint: dotted key → that variant."""
        return {
            key: value.removeprefix(VARIANT)
            for key, value in self.params.items()
            if isinstance(value, str) and value.startswith(VARIANT)
        }


MARGIN = 2.0
"""Percentage points: the margin of a claim that names none."""


class Contrast(Section):
    """A paired comparison of two variants, seed by seed on the same problems."""

    before: Name
    after: Name
    expect: Literal["better", "worse", "no difference", "not better", "not worse"]
    """The claim about `after`; `not better` is no difference or worse."""
    margin: Annotated[float, Field(gt=0)] = MARGIN
    """In percentage points; a smaller difference counts as no difference. Not for `better` and
    `worse`, which are tested against 0."""
    exploratory: bool = False
    """True for a comparison chosen after a look at the numbers: reported, but not a claim."""
    measure: str = ""
    """Measure to compare in, such as pass@8 or `harder pass@8`; '' for pass@1, or greedy accuracy
    without samples."""

    @property
    def name(self) -> str:
        return f"{self.before} to {self.after}"


class Study(Section):
    """An experiment that anyone can repeat."""

    claim: str
    """The hypothesis that the comparisons test, in a sentence."""
    source: str
    """Source of the claim, such as arXiv:2506.10947; '' for this project."""
    differs: str = ""
    """What differs from the source's set-up, in a sentence."""
    preset: str = ""
    """Preset that the variants start from; '' for params.yaml as it is."""
    benchmarks: tuple[str, ...] = ()
    """Benchmarks to measure; empty for the first of evaluate.benchmarks."""
    # With two seeds, the interval is too wide for any claim.
    seeds: Annotated[tuple[int, ...], Field(min_length=3)]
    variants: Annotated[dict[VariantName, Variant], Field(min_length=2)]
    comparisons: Annotated[tuple[Contrast, ...], Field(min_length=1)]

    def contradictions(self) -> Iterator[str]:
        for each in self.comparisons:
            for name in (each.before, each.after):
                if name not in self.variants:
                    yield f"comparisons: no variant `{name}`; there are {', '.join(self.variants)}"
            if each.expect in ("better", "worse") and each.margin != MARGIN:
                yield f"comparisons: {each.name}: `{each.expect}` is tested against 0, no `margin`"
        names = list(self.variants)
        for number, (name, variant) in enumerate(self.variants.items()):
            for key, value in variant.params.items():
                if not isinstance(value, str) and VARIANT in str(value):
                    yield f"variants.{name}: {key}: write `{VARIANT}…` as the value of a dotted key"
            for key, other in variant.inputs.items():
                # Only one above: no variant can then need itself.
                if other not in names[:number]:
                    yield (
                        f"variants.{name}: {key}: no variant `{other}` above it; there are "
                        f"{', '.join(names[:number]) or 'none'}"
                    )
        if len(set(self.seeds)) < len(self.seeds):
            yield f"seeds: {list(self.seeds)}; expected different ones"

    def named(self, benchmark: str, measure: str) -> str:
        """Return a measure's name with its benchmark: "harder pass@8".

        The first benchmark and '' give no prefix: "pass@8".
        """
        return measure if benchmark in ("", self.benchmarks[0]) else f"{benchmark} {measure}"


def study_file(name: str) -> Path:
    """Return the path of a study's file.

    Args:
        name: a path that ends in .yaml, or the name of a file in `studies/` without .yaml.

    Raises:
        UserError: there is none; lists the known ones.
    """
    for path in (Path(name), STUDIES / f"{name}.yaml"):
        # Without the suffix, `name` may be an unrelated file or a folder here.
        if path.suffix == ".yaml" and path.is_file():
            return path
    known = ", ".join(sorted(file.stem for file in STUDIES.glob("*.yaml")))
    fault = f": no file {name}, nor {STUDIES / name}.yaml" if name else " is not set"
    raise UserError(f"STUDY{fault}; there are {known}")


def load_study(path: Path) -> Study:
    """Return the study of a file, checked against params.yaml.

    In the result, each variant's params include the preset's values, and `benchmarks` is not empty.
    The checks are of the schema, every variant's params, and the names of benchmarks and measures.

    Raises:
        UserError: an invalid study; the schema's faults come one a line.
    """
    # Aliases are allowed, since variants may share params by a YAML anchor.
    study = parse_section(Study, read_yaml(path), origin=str(path))
    content = read_yaml(Path("params.yaml"))
    committed = parse_params(content, origin="params.yaml")
    if study.preset:
        study = _over_preset(study, committed)
    sets = study.benchmarks or committed.evaluate.benchmarks[:1]
    study = study.model_copy(update={"benchmarks": sets})
    compared = [each.measure for each in study.comparisons if each.measure]
    measures = []
    for name, variant in study.variants.items():
        params = with_params(content, variant, origin=f"{path}: variants.{name}")
        _check_known(sets, params.evaluate.benchmarks, origin=f"{path}: benchmarks")
        own = _measures(study, params)
        _check_known(compared, own, origin=f"{path}: measure")
        measures.append(own)
    if not any(all(name in own for own in measures) for name in ("greedy", "pass@1")):
        raise UserError(
            f"{path}: variants: all need greedy completions of `{sets[0]}`, or all need samples"
        )
    return study


def _check_known(names: Iterable[str], known: Sequence[str], *, origin: str) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"{origin}: no `{name}`; there are {', '.join(known)}")


def _measures(study: Study, params: Params) -> list[str]:
    """List the measures that a comparison may name, under these params of a variant.

    For example ["greedy", "pass@1", "pass@8", "harder greedy", …, "training"].
    """
    grpo, measures = params.grpo, []
    for benchmark in study.benchmarks:
        decoding = params.evaluate.decoding_of(benchmark)
        num_samples = decoding.num_samples
        # The measures that `problem_scores` computes: pass@1, pass@8, and pass@k of all samples. A
        # set, since some of the three may be equal; none without samples.
        ks = sorted({1, min(8, num_samples), num_samples}) if num_samples else []
        names = [*(["greedy"] if decoding.greedy else []), *(f"pass@{k}" for k in ks)]
        measures += [study.named(benchmark, name) for name in names]
    # `training` is the accuracy of GRPO's training samples; for an SFT checkpoint it is that of
    # GRPO's first step, which samples from this checkpoint. So each variant needs a GRPO run with
    # its params: its own, or that of another variant with equal params, which shares the run. TRL's
    # trainer, and one without rewards, do not log this accuracy.
    variants = study.variants.values()
    with_grpo = [each.params for each in variants if each.checkpoint == "grpo"]
    logged = grpo.trainer == "reckon" and not grpo.skipped and params.reward.weights
    if logged and all(
        each.checkpoint in ("sft", "grpo") and each.params in with_grpo for each in variants
    ):
        measures.append("training")
    return measures


def _over_preset(study: Study, committed: Params) -> Study:
    """Return the study with its preset's values added to each variant's params.

    Only those that differ from the `committed` params are added, without the seed, which the study
    sets. A variant's own values take precedence.
    """
    old, new = committed.flat(), preset_params(study.preset).flat() | {"seed": committed.seed}
    # A params.yaml without DPO has none of its keys but `dpo.init`.
    differing = {
        key: value
        for key, value in new.items()
        if (key, value) not in old.items() or (key.startswith("dpo.") and new["dpo.init"])
    }
    variants = {
        name: variant.model_copy(update={"params": {**differing, **variant.params}})
        for name, variant in study.variants.items()
    }
    return study.model_copy(update={"variants": variants})


def with_params(content: dict[str, Any], variant: Variant, *, origin: str) -> Params:
    """Return params.yaml's `content` with a variant's values, validated.

    Args:
        content: nested mappings; not changed.
        origin: name of the variant, for error messages.

    Raises:
        UserError: an unknown key, an invalid value, or a checkpoint that is not evaluated.
    """
    changed: Any = copy.deepcopy(content)
    for dotted, value in variant.params.items():
        *sections, key = dotted.split(".")
        mapping = changed
        for section in sections:
            mapping = mapping.setdefault(section, {}) if isinstance(mapping, dict) else None
        if dotted == "seed":
            raise UserError(f"{origin}.params: `seed` is set by the study's `seeds`")
        # No dict: `dotted` continues below a value, like "grpo.max_steps.x".
        if not isinstance(mapping, dict):
            raise UserError(f"{origin}.params: params.yaml has no key `{dotted}`")
        mapping[key] = value
    params = parse_params(changed, origin=origin)
    if variant.checkpoint not in params.evaluate.checkpoints:
        raise UserError(
            f"{origin}: checkpoint `{variant.checkpoint}` is not in evaluate.checkpoints "
            f"({', '.join(params.evaluate.checkpoints)}); set that in its params too"
        )
    return params


def hydra(value: Any) -> str:
    """Format a value in Hydra's grammar, for `dvc exp run --set-param`.

    {"sft": [1.0, true], "grpo": "x"} -> {sft:[1.0,true],grpo:"x"}
    """
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{hydra(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(hydra, value))}]"
    if isinstance(value, str):
        # Unlike in JSON, a line feed is written as it is, and a backslash too, but before a quote.
        return QuotedString(value, Quote.double).with_quotes()
    return json.dumps(value)
