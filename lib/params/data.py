"""Schema of the `prepare` section of params.yaml: sources of problems, and filters on them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    GetPydanticSchema,
    Tag,
)
from ruamel.yaml import YAML

from lib.params.section import (
    Count,
    Name,
    NonNegative,
    Positive,
    PositiveFloat,
    Section,
    Share,
    one_of,
)

RAW = Path("data/raw")
"""Folder of all source files; the stage `prepare` depends on it."""

ADAPTERS = (
    "table",
    "math_jsonl",
    "open_math_reasoning",
    "dapo",
    "mmlu",
    "olympiadbench",
    "alpaca_eval",
)
"""Names of the adapters in `lib.problems.adapters`."""

RecordField = Literal["problem", "reference", "solution", "subject", "level"]

WITHOUT_ANSWERS = {"alpaca_eval"}
"""Adapters and known sets of problems without answers: benchmarks only, no training data."""

WITH_FIXED_COLUMNS = {"alpaca_eval", "mmlu"}
"""Adapters for the fixed column names of one public set; a source's `columns` cannot change
them."""


def first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that occurs twice; None if all differ."""
    return next((name for name in names if names.count(name) > 1), None)


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    if twice := first_repeated(names):
        raise ValueError(f"`{twice}` is listed twice")
    return names


Once = AfterValidator(_once)
"""Validator: no name is listed twice."""

TRAINING_SETS = {"sft", "grpo", "validation"}
"""Names of the sets that `prepare` writes beside the benchmarks; no benchmark may have one."""


LevelWeights = Annotated[tuple[NonNegative, ...], Field(min_length=1, max_length=9)]
"""Relative frequencies of levels 1, 2, …: (3, 1) makes 75 % of level 1 and 25 % of level 2."""


class LevelWeightsBySet(Section):
    """A mixture of levels for each training set."""

    sft: LevelWeights
    """Weights for SFT, and for test problems except those of the set `harder`."""
    grpo: LevelWeights


class Synthetic(Section):
    """Settings of the built-in generator of word problems."""

    num_sft: Positive
    """Problems for supervised fine-tuning."""
    num_grpo: Positive
    """Problems for GRPO."""
    num_held_out: Positive
    """Test problems of the training levels."""
    num_harder: Positive
    """Test problems of the level `harder_level`."""
    level_weights: Annotated[
        Annotated[LevelWeights, Tag("<levels>")]
        | Annotated[LevelWeightsBySet, Tag("<levels by set>")],
        Discriminator(
            # Chosen by type: otherwise pydantic reports the errors of both alternatives.
            lambda value: "<levels>" if isinstance(value, list | tuple) else "<levels by set>"
        ),
    ]
    """Mixture of levels 1, 2, … in training; a problem of level n takes n steps of arithmetic."""
    max_value: Annotated[int, Field(ge=10)]
    """Largest result of any step."""
    max_operand: Annotated[int, Field(ge=2)]
    """Largest starting number, summand and subtrahend."""
    max_factor: Annotated[int, Field(ge=2)]
    """Largest factor and divisor."""
    harder_level: Annotated[int, Field(ge=2, le=9)]
    """Steps of the harder test problems: more than any SFT solution has."""
    distractor_rate: Share
    """Share of problems with a fact that the answer does not need."""
    bare_answer_rate: Share
    """Share of SFT targets with the answer only, without reasoning."""
    wording: Literal["short", "wide"]
    """Sentences of the problems; `wide` for a pretrained model."""
    split_by: Literal["text", "equations"]
    """`text`: no two sets share a problem. `equations`: nor a sequence of equations."""

    def levels_of(self, training_set: Literal["sft", "grpo"]) -> tuple[float, ...]:
        """Return the weights of levels 1, 2, … for one training set."""
        weights = self.level_weights
        return weights if isinstance(weights, tuple) else getattr(weights, training_set)

    def contradictions(self) -> Iterator[str]:
        if not all(sum(self.levels_of(name)) for name in ("sft", "grpo")):
            yield "level_weights are all 0; at least one level must occur"
        # The set `harder` measures longer chains of steps than training has.
        num_levels = len(self.levels_of("sft"))
        if self.harder_level <= num_levels:
            yield (
                f"harder_level={self.harder_level} is also a level of SFT "
                f"(level_weights has {num_levels}); expected more"
            )
        if self.max_operand > self.max_value:
            yield (
                f"max_operand={self.max_operand} is above max_value={self.max_value}, "
                "so that a problem could start above the largest allowed result"
            )


class GeneratorSource(Section):
    """A set of problems made by the built-in generator."""

    generator: Literal["sft", "grpo", "held_out", "harder"]
    """The set to take; the generator's sets share no problem (`prepare.synthetic`)."""


def how_to_import(path: Path) -> str:
    """Return the error text for a source outside of data/raw, with the command to import it."""
    return (
        f"{path} is not under {RAW}/, so an edit of it would re-run nothing; "
        f"import it with `dvc import-url {path} {RAW}/{path.name}` "
        f"(or copy a small file there and commit it) and name {RAW}/{path.name} in params.yaml"
    )


def under_raw(text: str) -> str:
    """Validate that a path is under data/raw, and return it unchanged.

    DVC tracks this folder only: after a change of a file elsewhere, it would re-run no stage.

    Raises:
        ValueError: another path; the message has the command to import it.
    """
    path = Path(text)
    # `is_relative_to` only compares the parts of the text: `data/raw/../x` would pass.
    if not path.is_relative_to(RAW) or ".." in path.parts:
        raise ValueError(how_to_import(path))
    return text


def _commit(text: str) -> str:
    if text and not re.fullmatch(r"[0-9a-f]{40}", text):
        raise ValueError(
            f"expected a commit, 40 hex digits, or '' for `make fetch` to look up, got {text!r}; "
            "a branch would drift"
        )
    return text


def _or_all(expected: str) -> GetPydanticSchema:
    """Return an annotation for a union with `all`, whose error is one message.

    pydantic would report an error for each alternative.
    """
    message = {
        "custom_error_type": "or_all",
        "custom_error_message": f"must be {expected} or `all`",
    }
    return GetPydanticSchema(lambda union, schema_of: {**schema_of(union), **message})


CountOrAll = Annotated[Positive | Literal["all"], _or_all("a whole number above 0")]


class LimitedSource(Section):
    """Base of the sources outside of reckon (files, Hub), with a limit on their problems."""

    limit: CountOrAll
    """Maximum number of problems of this source, drawn by content hash; `all` for every one."""


@cache
def known_sets() -> dict[str, dict[str, Any]]:
    """Return the entries of lib/problems/known.yaml: name → repository, revision, and more."""
    # The file is beside the code that reads the sets, so that a new revision re-runs `prepare`.
    text = (Path(__file__).parents[1] / "problems/known.yaml").read_text(encoding="utf-8")
    return cast("dict[str, dict[str, Any]]", YAML(typ="safe").load(text))


class KnownSource(LimitedSource):
    """A public set, by its name in lib/problems/known.yaml."""

    known: Annotated[str, one_of(known_sets)]
    """Name in lib/problems/known.yaml."""


AdapterName = Annotated[str, one_of(ADAPTERS, role="adapters")]


class RowsSource(LimitedSource):
    """Base of the sources with rows in columns, and the adapter to convert a row to a problem."""

    adapter: AdapterName
    """Converter from a row to a problem (lib/problems/adapters, or
    `plugins/adapters/file.py:name`); `table` recognises the columns by their names."""
    columns: dict[RecordField, str]
    """Field of a problem → its column, for columns whose names the adapter does not know; '' leaves
    the field empty."""

    def contradictions(self) -> Iterator[str]:
        if self.columns.get("problem") == "":
            yield "columns.problem: a problem cannot be left empty; name its column"
        if self.columns and self.adapter in WITH_FIXED_COLUMNS:
            yield f"columns: adapter `{self.adapter}` knows its own and ignores these; set {{}}"


class PathSource(RowsSource):
    """Files under data/raw."""

    path: Annotated[str, AfterValidator(under_raw)]
    """A JSONL, JSON, CSV or Parquet file, a folder of such, or one that `save_to_disk` wrote."""
    split: str = ""
    """One of a folder's splits, as the file names spell it; omitted if there is only one."""
    # `./reckon preset` and `./reckon data` write these out, so that `dvc params diff` shows them.
    adapter: AdapterName = "table"
    """`table` where it is omitted."""
    columns: dict[RecordField, str] = Field(default_factory=dict)
    """None named where it is omitted."""
    limit: CountOrAll = "all"
    """Every problem where it is omitted."""


def write_out(content: Mapping[str, Any]) -> None:
    """Add the omitted keys of the `path` sources in the content of a params.yaml, in place."""
    prepare = content.get("prepare", {})
    sections = [prepare.get(name) or {} for name in ("sft", "grpo")]
    entries = [*(each for part in sections for each in part.get("sources") or ())]
    entries += prepare.get("benchmarks") or ()
    truths = sections[0].get("truth_from") or ()
    for source in (*(each.get("source") for each in entries), *truths):
        if isinstance(source, dict) and "path" in source:
            for name in ("adapter", "columns", "limit"):
                default = PathSource.model_fields[name].get_default(call_default_factory=True)
                source.setdefault(name, default)


class HubSource(RowsSource):
    """One split of a dataset on the Hugging Face Hub."""

    hub: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    """Repository, owner/name."""
    revision: Annotated[str, AfterValidator(_commit)]
    """Commit of the repository: 40 hex digits, or '' until `make fetch` has looked it up."""
    subset: str
    """Configuration of the card; '' for the only one."""
    split: Annotated[str, Field(min_length=1)]
    """Name of the split: train, test, …"""
    files: str
    """Glob of the files that hold the split, for a large repository; '' for all."""

    @property
    def place(self) -> dict[str, str]:
        return {"name": self.hub, "revision": self.revision, "files": self.files}


UNION_TAGS: dict[str, type[Section] | None] = {
    "<generator>": GeneratorSource,
    "<path>": PathSource,
    "<hub>": HubSource,
    "<known>": KnownSource,
    "<levels>": None,
    "<levels by set>": LevelWeightsBySet,
}
"""Tag of a union's alternative → its section; None for a plain list. pydantic puts the tag into an
error's location, as in ("prepare", "synthetic", "level_weights", "<levels>", 0); params.yaml has
no such key."""


def _kind(source: Any) -> str | None:
    """Return the union tag of a source, `{"path": ..., ...} -> "<path>"`; None if it has no tag."""
    keys = vars(source) if isinstance(source, Section) else source
    kinds = ("generator", "path", "hub", "known")
    return next((f"<{key}>" for key in kinds if isinstance(keys, dict) and key in keys), None)


Source = Annotated[
    Annotated[GeneratorSource, Tag("<generator>")]
    | Annotated[PathSource, Tag("<path>")]
    | Annotated[HubSource, Tag("<hub>")]
    | Annotated[KnownSource, Tag("<known>")],
    Discriminator(
        _kind,
        custom_error_type="source_kind",
        custom_error_message="expected one of the keys `generator`, `path`, `hub`, `known`",
    ),
]


AnySource = GeneratorSource | PathSource | HubSource | KnownSource
"""The type of a validated source: `Source` without pydantic's tags."""


def hub_splits(source: AnySource) -> tuple[HubSource, ...]:
    """Return the splits on the Hub that make up a source, in order; () if it is not on the Hub.

    A `hub` source is one split itself. A known set has one for each of its subsets.
    """
    if isinstance(source, HubSource):
        return (source,)
    if not isinstance(source, KnownSource):
        return ()
    entry = {"adapter": "table", "files": "", "subsets": [""], **known_sets()[source.known]}
    subsets = entry.pop("subsets")
    entry.pop("rows", None)
    return tuple(
        HubSource(**entry, subset=subset, columns={}, limit=source.limit) for subset in subsets
    )


class Ingredient(Section):
    """One source of a training set and its part in the mixture."""

    weight: Annotated[PositiveFloat | Literal["all"], _or_all("a number above 0")]
    """Sources with numbers are mixed in the ratio of the numbers; `all` takes every row."""
    source: Source

    def contradictions(self) -> Iterator[str]:
        name = getattr(self.source, "adapter", None) or getattr(self.source, "known", None)
        if name in WITHOUT_ANSWERS:
            yield (
                f"source: `{name}` has problems without answers, "
                "which can be a benchmark but no training data"
            )


class SftData(Section):
    """The data of supervised fine-tuning."""

    sources: Annotated[tuple[Ingredient, ...], Field(min_length=1)]
    bare_answers: bool
    """Accept rows without a worked solution; otherwise they are bad rows."""
    numeric_only: bool
    """Keep problems whose answer is a number."""
    correct_only: bool
    """Keep problems with a worked solution that agrees with the reference."""
    truth_from: Annotated[tuple[Source, ...], Field(max_length=1)]
    """A source with the references of these problems, matched by text; [] if each row has its own.
    A model's response is never its own reference."""
    num_train_examples: CountOrAll
    """Problems to draw, by content hash; `all` for every one."""


class Difficulty(Section):
    """Filter of GRPO's problems by pass rate: keep those that a checkpoint solves sometimes."""

    file: Annotated[str, AfterValidator(lambda text: text and under_raw(text))]
    """Pass rates from `./reckon difficulty`, under data/raw; '' for no such filter."""
    lowest: Share
    """Lowest pass rate that is kept."""
    highest: Share
    """Highest pass rate that is kept."""
    easy_first: bool
    """Order the problems from easy to hard."""

    def contradictions(self) -> Iterator[str]:
        if self.lowest > self.highest:
            yield f"lowest={self.lowest} is above highest={self.highest}"


class GrpoData(Section):
    """The data of GRPO."""

    sources: Annotated[tuple[Ingredient, ...], Field(min_length=1)]
    numeric_only: bool
    """Keep problems whose answer is a number."""
    difficulty: Difficulty
    num_train_examples: CountOrAll
    """Problems to draw, by content hash; `all` for every one."""


class Benchmark(Section):
    """A named set of problems for evaluation, never for training."""

    name: Name
    """Name of the set in `evaluate.benchmarks`."""
    source: Source

    def contradictions(self) -> Iterator[str]:
        # reports/metrics/prepare.json has one `num_<name>` for each set of either kind.
        if self.name in TRAINING_SETS:
            yield f"name: `{self.name}` is the name of a training set; choose another"


class LengthSettings(Section):
    """Limits in tokens, in addition to `model.max_seq_length`."""

    prompt_percentile: Annotated[float, Field(gt=0, le=100)]
    """Prompts beyond this percentile are dropped; 100 keeps all."""
    max_tokens: Count
    """Hard cut on prompt and completion together; 0 for none."""


class Prepare(Section):
    """The section `prepare`: sources of problems, and filters on them."""

    synthetic: Synthetic
    sft: SftData
    grpo: GrpoData
    benchmarks: Annotated[tuple[Benchmark, ...], Field(min_length=1)]
    bad_rows: Literal["error", "drop"]
    """A row without a usable problem stops the stage (`error`), or is dropped and counted."""
    near_duplicate_similarity: Annotated[PositiveFloat, Field(le=1)]
    """Jaccard similarity of word 5-grams at which the later problem is dropped; 1 drops only
    copies."""
    contamination_ngram: Count
    """Drop training problems that share this many words in a row with a benchmark; 0 keeps them."""
    validation_share: Annotated[float, Field(ge=0, lt=1)]
    """Share of the training problems to hold back, by content hash."""
    validation_from: Annotated[tuple[Literal["sft", "grpo"], ...], Field(min_length=1)]
    """Training sets to hold back from; a small SFT set is better left whole."""
    lengths: LengthSettings

    @property
    def every_source(self) -> tuple[AnySource, ...]:
        training = [entry.source for entry in (*self.sft.sources, *self.grpo.sources)]
        benchmarks = [benchmark.source for benchmark in self.benchmarks]
        return (*training, *benchmarks, *self.sft.truth_from)

    def contradictions(self) -> Iterator[str]:
        if twice := first_repeated([benchmark.name for benchmark in self.benchmarks]):
            yield f"benchmarks: `{twice}` is listed twice"
        trained_on = (*self.sft.sources, *self.grpo.sources)
        # The generator's sets share no problem (each has its own bucket of the content hash), but
        # one of them may be named twice.
        generated = [each.source for each in trained_on if isinstance(each.source, GeneratorSource)]
        for each in self.benchmarks:
            if each.source in generated:
                yield f"benchmarks: `{each.name}` is also a training set; name another generator"
        training_from_outside = any(isinstance(entry.source, LimitedSource) for entry in trained_on)
        benchmarks_from_outside = any(
            isinstance(each.source, LimitedSource) for each in self.benchmarks
        )
        # `prepare` drops training problems that share contamination_ngram words in a row with a
        # benchmark, or contain a whole problem of it that is shorter. 1000 words are more than any
        # usual problem has, so that only whole problems count.
        if training_from_outside and benchmarks_from_outside and not self.contamination_ngram:
            yield (
                "contamination_ngram=0 would train on problems that a training set shares with "
                "a benchmark (both have problems from files or the Hub): "
                "set 8, or 1000 to compare whole texts only"
            )
