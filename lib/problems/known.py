"""Public sets by name: where on the Hub they are, at which revision, and what reads their rows."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from lib.artifacts import replacing
from lib.errors import UserError
from lib.problems.hub import HubSet, fetch
from lib.problems.places import scratch_folder
from lib.problems.rows import RowFault, read_table


@dataclasses.dataclass(frozen=True)
class KnownSet:
    """A set of one or more splits.

    Attributes:
        adapter: see `lib.problems.adapters`.
        parts: its splits on the Hub, in order.
    """

    adapter: str
    parts: tuple[HubSet, ...]


_GSM8K = HubSet(
    repo="openai/gsm8k", revision="740312add88f781978c0658806c59bc2815b9866", subset="main"
)
_MATH = HubSet(
    repo="EleutherAI/hendrycks_math", revision="21a5633873b6a120296cce3e2df9d5550074f4a3"
)
_MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)


def _one(adapter: str, repo: str, revision: str, **where: str) -> KnownSet:
    """A set of one split, "test" unless said otherwise."""
    return KnownSet(adapter, (HubSet(repo=repo, revision=revision, **{"split": "test", **where}),))


def _math(split: str) -> KnownSet:
    parts = (dataclasses.replace(_MATH, subset=name, split=split) for name in _MATH_SUBJECTS)
    return KnownSet("table", tuple(parts))


KNOWN: dict[str, KnownSet] = {
    "gsm8k_train": KnownSet("table", (_GSM8K,)),
    "gsm8k": KnownSet("table", (dataclasses.replace(_GSM8K, split="test"),)),
    "math_train": _math("train"),
    "math": _math("test"),
    "competition_math": _math("test"),
    "math500": _one("table", "HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),
    "aime24": _one("table", "math-ai/aime24", "83a7f387baaa524a8bda0022eac0541582297103"),
    "aime25": _one("table", "math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b"),
    "amc23": _one("table", "math-ai/amc23", "80815d37005feb82cd7f8fbc6901d5d3eff43057"),
    "minerva": _one("table", "math-ai/minervamath", "ee46ddc498933b1977577953250ca5c66be64f96"),
    "olympiadbench": _one(
        "olympiadbench",
        "Hothan/OlympiadBench",
        "91184b52131e7fc9455fef848035173aea8cc01a",
        split="train",
        files="OlympiadBench/OE_TO_maths_en_COMP/*.parquet",
    ),
    "mmlu": _one("mmlu", "cais/mmlu", "c30699e8356da336a370243923dbaf21066bb9fe", subset="all"),
    "alpaca_eval": _one(
        "alpaca_eval",
        "tatsu-lab/alpaca_eval",
        "2edc6fad8be6b14ea7230aabfd08188da6b8b814",
        files="alpaca_eval.json",
    ),
    "dapo": _one(
        "dapo",
        "open-r1/DAPO-Math-17k-Processed",
        "31dd309567e3da778038cc87d868b6097a3ccf68",
        subset="en",
        split="train",
    ),
    "open_math_reasoning": _one(
        "open_math_reasoning",
        "nvidia/OpenMathReasoning",
        "d3d08664755704f422af97d43a7ff0ded4bd95df",
        split="cot",
        files="data/cot-00000-of-00144.parquet",
    ),
}
"""By the name that `make benchmarks` takes. OpenMathReasoning is the first of its 144 files."""


def fetch_known(name: str, folder: Path) -> tuple[Path, int]:
    """Write a set's rows, as they are, to `<folder>/<name>.jsonl`; returns the path and how many.

    Raises:
        UserError: no such set, or the Hub cannot be reached.
    """
    if name not in KNOWN:
        raise UserError(f"no set `{name}`; there are {', '.join(KNOWN)}")
    path = folder / f"{name}.jsonl"
    count = 0
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as lines:
        for line in _lines(KNOWN[name]):
            lines.write(line + "\n")
            count += 1
    return path, count


def _lines(known: KnownSet) -> Iterator[str]:
    for part in known.parts:
        with scratch_folder() as cache:
            for row in read_table(fetch(part, cache=cache), origin=str(part)):
                if isinstance(row.fields, RowFault):
                    raise UserError(f"{row.place}: {row.fields}")
                yield json.dumps(row.fields, ensure_ascii=False, default=str)
