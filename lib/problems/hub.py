"""Sets on the Hugging Face Hub, at a pinned revision, and the public ones by name.

The files of a revision are fetched into the Hub's cache once (`HF_HOME`), where later runs find
them without a network, and `datasets` reads them from there.
"""

import json
from pathlib import Path
from typing import Any

import datasets
import httpx
import huggingface_hub
from datasets import Dataset
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lib.artifacts import replacing
from lib.errors import UserError
from lib.params.data import HubSource
from lib.problems.places import scratch_folder
from lib.problems.rows import RowFault, read_table


def hub_label(source: HubSource) -> str:
    """What messages call a split on the Hub: "owner/name@revision subset/split"."""
    subset = f"{source.subset}/" if source.subset else ""
    return f"{source.hub}@{source.revision[:8]} {subset}{source.split}"


def fetch(source: HubSource, *, cache: Path) -> Dataset:
    """The split, memory-mapped; `cache` holds what `datasets` converts.

    Raises:
        UserError: no network, no such repository, revision, subset or split, or no permission.
    """
    folder = _download(source)
    options: dict[str, Any] = {"split": source.split, "cache_dir": str(cache)}
    if source.files:
        # The card counts the rows of all files; these may be some of them.
        options["verification_mode"] = "no_checks"
        options["data_files"] = {source.split: source.files}
    try:
        return datasets.load_dataset(str(folder), source.subset or None, **options)
    except (DatasetGenerationError, DatasetNotFoundError, ValueError, OSError) as error:
        cause = " ".join(str(error.__cause__ or error).split())
        raise UserError(
            f"{hub_label(source)}: {cause}; check `subset`, `split` and `files` of this source in "
            "params.yaml"
        ) from error


def _download(source: HubSource) -> Path:
    label = hub_label(source)
    try:
        return _snapshot(source, local_files_only=False)
    except GatedRepoError as error:
        raise UserError(
            f"{label}: access has to be granted; accept the set's terms on its page and run "
            "`hf auth login`"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise UserError(
            f"{label}: no such repository or revision on the Hub; check `hub` and `revision` of "
            "this source in params.yaml"
        ) from error
    except (httpx.HTTPError, OSError) as offline:
        try:
            return _snapshot(source, local_files_only=True)
        except LocalEntryNotFoundError:
            raise UserError(
                f"{label}: not (all) in the Hub's cache, and the Hub cannot be reached; fetch it "
                f"where it can (`hf download {source.hub} --repo-type dataset "
                f"--revision {source.revision} --local-dir data/raw/NAME`), "
                "and give `path: data/raw/NAME/...` as the source in params.yaml"
            ) from offline


def _snapshot(source: HubSource, *, local_files_only: bool) -> Path:
    folder = huggingface_hub.snapshot_download(
        source.hub,
        repo_type="dataset",
        revision=source.revision,
        allow_patterns=[source.files] if source.files else None,
        local_files_only=local_files_only,
    )
    return Path(folder)


def _split(
    hub: str,
    revision: str,
    *,
    adapter: str = "table",
    subset: str = "",
    split: str = "test",
    files: str = "",
) -> HubSource:
    return HubSource(
        adapter=adapter,
        columns={},
        hub=hub,
        revision=revision,
        subset=subset,
        split=split,
        files=files,
    )


def _gsm8k(split: str) -> tuple[HubSource, ...]:
    revision = "740312add88f781978c0658806c59bc2815b9866"
    return (_split("openai/gsm8k", revision, subset="main", split=split),)


_MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)


def _math(split: str) -> tuple[HubSource, ...]:
    name, revision = "EleutherAI/hendrycks_math", "21a5633873b6a120296cce3e2df9d5550074f4a3"
    return tuple(_split(name, revision, subset=subset, split=split) for subset in _MATH_SUBJECTS)


KNOWN: dict[str, tuple[HubSource, ...]] = {
    "gsm8k_train": _gsm8k("train"),
    "gsm8k": _gsm8k("test"),
    "math_train": _math("train"),
    "math": _math("test"),
    "competition_math": _math("test"),
    "math500": (_split("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),),
    "aime24": (_split("math-ai/aime24", "83a7f387baaa524a8bda0022eac0541582297103"),),
    "aime25": (_split("math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b"),),
    "amc23": (_split("math-ai/amc23", "80815d37005feb82cd7f8fbc6901d5d3eff43057"),),
    "minerva": (_split("math-ai/minervamath", "ee46ddc498933b1977577953250ca5c66be64f96"),),
    "olympiadbench": (
        _split(
            "Hothan/OlympiadBench",
            "91184b52131e7fc9455fef848035173aea8cc01a",
            adapter="olympiadbench",
            split="train",
            files="OlympiadBench/OE_TO_maths_en_COMP/*.parquet",
        ),
    ),
    "mmlu": (
        _split(
            "cais/mmlu", "c30699e8356da336a370243923dbaf21066bb9fe", adapter="mmlu", subset="all"
        ),
    ),
    "alpaca_eval": (
        _split(
            "tatsu-lab/alpaca_eval",
            "2edc6fad8be6b14ea7230aabfd08188da6b8b814",
            adapter="alpaca_eval",
            files="alpaca_eval.json",
        ),
    ),
    "dapo": (
        _split(
            "open-r1/DAPO-Math-17k-Processed",
            "31dd309567e3da778038cc87d868b6097a3ccf68",
            adapter="dapo",
            subset="en",
            split="train",
        ),
    ),
    # The first of its 144 files.
    "open_math_reasoning": (
        _split(
            "nvidia/OpenMathReasoning",
            "d3d08664755704f422af97d43a7ff0ded4bd95df",
            adapter="open_math_reasoning",
            split="cot",
            files="data/cot-00000-of-00144.parquet",
        ),
    ),
}
"""The splits of each public set, in order, by the name that `make benchmarks` takes."""


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
        for source in KNOWN[name]:
            with scratch_folder() as cache:
                for row in read_table(fetch(source, cache=cache), origin=hub_label(source)):
                    if isinstance(row.fields, RowFault):
                        raise UserError(f"{row.place}: {row.fields}")
                    lines.write(json.dumps(row.fields, ensure_ascii=False, default=str) + "\n")
                    count += 1
    return path, count
