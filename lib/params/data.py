"""The `prepare` section: sources of problems, and their selection."""

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
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
"""Adapters and known sets without answers to learn from."""

WITH_FIXED_COLUMNS = {"alpaca_eval", "mmlu"}
"""Adapters that read the columns of one set."""


def first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that occurs twice."""
    return next((name for name in names if names.count(name) > 1), None)


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names as they are; refuse a repeated one."""
    if twice := first_repeated(names):
        raise ValueError(f"`{twice}` is listed twice")
    return names


Once = AfterValidator(_once)
"""No name is listed twice."""

TRAINING_SETS = {"sft", "grpo", "validation"}
"""Sets that `prepare` writes beside the benchmarks."""


LevelWeights = Annotated[tuple[NonNegative, ...], Field(min_length=1, max_length=9)]


class LevelWeightsBySet(Section):
    """A mixture of levels for each training set."""

    sft: LevelWeights
    """Weights for SFT, and for test problems except those of the set `harder`."""
    grpo: LevelWeights


class Synthetic(Section):
    """The built-in generator of word problems."""

    num_sft: Positive
    """Problems for supervised fine-tuning."""
    num_grpo: Positive
    """Problems for reinforcement."""
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
    """Mixture of levels 1, 2, … in training; level n takes n steps."""
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
    """Sets share no problem (`text`), or no sequence of equations either."""

    def levels_of(self, training_set: Literal["sft", "grpo"]) -> tuple[float, ...]:
        """Return the level weights of one training set."""
        weights = self.level_weights
        return weights if isinstance(weights, tuple) else getattr(weights, training_set)

    def contradictions(self) -> Iterator[str]:
        # `random.choices`, which draws the levels, needs a positive total weight.
        if not all(sum(self.levels_of(name)) for name in ("sft", "grpo")):
            yield "level_weights are all 0; at least one level must occur"
        # The set `harder` measures longer chains than training has.
        if self.harder_level <= (most := len(self.levels_of("sft"))):
            yield (
                f"harder_level={self.harder_level} is also a level of SFT "
                f"(level_weights has {most}); expected more"
            )
        if self.max_operand > self.max_value:
            yield (
                f"max_operand={self.max_operand} is above max_value={self.max_value}, "
                "so that a problem could start above the largest allowed result"
            )


class GeneratorSource(Section):
    """A set of the built-in generator."""

    generator: Literal["sft", "grpo", "held_out", "harder"]
    """The set to take; the generator's sets share no problem (`prepare.synthetic`)."""


def how_to_import(path: Path, *, raw: Path = RAW) -> str:
    """Explain why a path elsewhere is refused, with the command that imports it."""
    return (
        f"{path} is not under {raw}/, so an edit of it would re-run nothing; "
        f"import it with `dvc import-url {path} {raw}/{path.name}` "
        f"(or copy a small file there and commit it) and name {raw}/{path.name} in params.yaml"
    )


def under_raw(text: str) -> str:
    """Return the path as it is; refuse one outside of `RAW`, since no stage depends on it."""
    path = Path(text)
    # `is_relative_to` compares parts of the text: `data/raw/../x` would pass.
    if not path.is_relative_to(RAW) or ".." in path.parts:
        raise ValueError(how_to_import(path))
    return text


def _commit(text: str) -> str:
    """Return the text as it is; refuse all but a commit and ''."""
    if text and not re.fullmatch(r"[0-9a-f]{40}", text):
        raise ValueError(
            f"expected a commit, 40 hex digits, or '' for `make fetch` to look up, got {text!r}; "
            "a branch would drift"
        )
    return text


def _number_or_all(value: Any) -> Any:
    """Return the value as it is; refuse all but a finite number above 0 and `all`."""
    # bool is an int in Python: `true` would count as 1.
    positive = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    if value != "all" and not (positive and math.isfinite(value)):
        raise ValueError(f"must be a number above 0 or `all`, got {value!r}")
    return value


def _count_or_all(value: Any) -> Any:
    # Checked before pydantic, which would report both types of the union instead of this.
    if isinstance(value, float):
        raise ValueError(f"must be a whole number or `all`, got {value!r}")
    return _number_or_all(value)


CountOrAll = Annotated[int | Literal["all"], BeforeValidator(_count_or_all)]


class LimitedSource(Section):
    """Rows from outside, perhaps only some of them."""

    limit: CountOrAll
    """Maximum number of problems of this source, drawn by content hash; `all` for every one."""


@cache
def known_sets() -> dict[str, dict[str, Any]]:
    """Read the entries of lib/problems/known.yaml, by public set."""
    # The file is beside the code that reads the sets, so that a new revision re-runs `prepare`.
    text = (Path(__file__).parents[1] / "problems/known.yaml").read_text(encoding="utf-8")
    return cast("dict[str, dict[str, Any]]", YAML(typ="safe").load(text))


class KnownSource(LimitedSource):
    """A public set by its name."""

    known: Annotated[str, one_of(known_sets)]
    """Name in lib/problems/known.yaml."""


class RowsSource(LimitedSource):
    """Rows, and the adapter that makes problems of them."""

    adapter: Annotated[str, one_of(ADAPTERS, role="adapters")]
    """Reader of its rows (lib/problems/adapters, or `plugins/adapters/file.py:name`); `table` goes
    by the columns' names."""
    columns: dict[RecordField, str]
    """Field of a problem → its column, for columns whose names the adapter does not know."""

    @field_validator("columns")
    @classmethod
    def _are_read(cls, columns: dict[RecordField, str], info: ValidationInfo) -> Any:
        # `adapter` is declared first, so that it is validated by now; a wrong one is not in `data`.
        adapter = info.data.get("adapter")
        if columns and adapter in WITH_FIXED_COLUMNS:
            raise ValueError(
                f"adapter `{adapter}` knows its columns and would ignore these; set {{}}"
            )
        return columns


class PathSource(RowsSource):
    """Files under data/raw."""

    path: Annotated[str, AfterValidator(under_raw)]
    """A JSONL, JSON, CSV, Parquet or Arrow file, or a folder of such."""
    split: str = ""
    """One of a folder's splits, as the file names spell it; omitted if there is only one."""


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
        """The keyword arguments of `lib.artifacts.hub.dataset_repository`."""
        return {"name": self.hub, "revision": self.revision, "files": self.files}


UNION_TAGS: dict[str, type[Section] | None] = {
    "<generator>": GeneratorSource,
    "<path>": PathSource,
    "<hub>": HubSource,
    "<known>": KnownSource,
    "<levels>": None,
    "<levels by set>": LevelWeightsBySet,
}
"""Tags of union types, with the section of each: they appear in pydantic's errors, not in
params."""


def _kind(source: Any) -> str | None:
    """Return the union tag of a source by its distinguishing key; None if it has none."""
    # `source` is a mapping from params.yaml, or a section that is validated again.
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


def hub_splits(source: AnySource) -> tuple[HubSource, ...]:
    """Return the Hub splits of a source, in order; () if it is not on the Hub."""
    if isinstance(source, HubSource):
        return (source,)
    if not isinstance(source, KnownSource):
        return ()
    # Defaults first: known.yaml's entries name only what differs from them.
    entry = {"adapter": "table", "files": "", "subsets": [""], **known_sets()[source.known]}
    # One `hub` source per subset: MATH's repository has one for each subject.
    subsets = entry.pop("subsets")
    return tuple(
        HubSource(**entry, subset=subset, columns={}, limit=source.limit) for subset in subsets
    )


class Ingredient(Section):
    """One source of a training set and its part in the mixture."""

    weight: Annotated[float | Literal["all"], BeforeValidator(_number_or_all)]
    """Sources with numbers are mixed in the ratio of the numbers; `all` takes every row."""
    source: Source

    @field_validator("source")
    @classmethod
    def _has_answers(cls, source: Source) -> Source:
        # Refused by the adapter's name or by the name of the known set.
        name = getattr(source, "adapter", None) or getattr(source, "known", None)
        if name in WITHOUT_ANSWERS:
            raise ValueError(
                f"`{name}` has problems without answers, "
                "which can be a benchmark but no training data"
            )
        return source


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
    """Selection of problems that a checkpoint solves sometimes."""

    file: Annotated[str, AfterValidator(lambda text: text and under_raw(text))]
    """Pass rates from `make difficulty`, under data/raw; '' for no such filter."""
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
    """The data of reinforcement."""

    sources: Annotated[tuple[Ingredient, ...], Field(min_length=1)]
    numeric_only: bool
    """Keep problems whose answer is a number."""
    difficulty: Difficulty
    num_train_examples: CountOrAll
    """Problems to draw, by content hash; `all` for every one."""


class Benchmark(Section):
    """Problems that are never trained on."""

    name: Name
    """Name of the set in `evaluate.benchmarks`."""
    source: Source

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        # reports/metrics/prepare.json has one `num_<name>` for each set of either kind.
        if name in TRAINING_SETS:
            raise ValueError(f"`{name}` is the name of a training set; choose another")
        return name


class LengthSettings(Section):
    """Limits in tokens, in addition to `model.max_seq_length`."""

    prompt_percentile: Annotated[float, Field(gt=0, le=100)]
    """Prompts beyond this percentile are dropped; 100 keeps all."""
    max_tokens: Count
    """Hard cut on prompt and completion together; 0 for none."""


class Prepare(Section):
    """Sources of problems, and their selection."""

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
        """All sources of problems: training sets, benchmarks, SFT's references."""
        training = [entry.source for entry in (*self.sft.sources, *self.grpo.sources)]
        benchmarks = [benchmark.source for benchmark in self.benchmarks]
        return (*training, *benchmarks, *self.sft.truth_from)

    @field_validator("benchmarks")
    @classmethod
    def _names(cls, benchmarks: tuple[Benchmark, ...]) -> tuple[Benchmark, ...]:
        # The name of a benchmark is its file name: a second one would replace the first.
        _once(tuple(benchmark.name for benchmark in benchmarks))
        return benchmarks

    def contradictions(self) -> Iterator[str]:
        trained_on = (*self.sft.sources, *self.grpo.sources)
        # Generated sets cannot leak: each split has its own bucket of the content hash.
        from_outside = [
            any(isinstance(entry.source, LimitedSource) for entry in entries)
            for entries in (trained_on, self.benchmarks)
        ]
        if not self.contamination_ngram and all(from_outside):
            yield (
                "contamination_ngram=0 would train on problems that a training set shares with "
                "a benchmark, and neither is only generated; "
                "set 8, or 1000 to compare whole texts only"
            )
