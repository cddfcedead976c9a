"""Read logs of evaluation tools: each answer with the tool's own score.

The keys of a file's first row tell the tool (`TOOLS`). Any other file has columns with usual names,
such as OpenAI's batches, vLLM's outputs and our graded rows (`lib.grading.external.COLUMN_NAMES`).
"""

import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from lib.artifacts import MAX_JSON, parse_json, read_json, read_records
from lib.core.errors import UserError
from lib.grading.external import LABELS, column_value, reference_of, single_text
from reckon_verifier import extract_answer, is_equivalent

Row = Mapping[str, Any]

FILES = ("samples_*.jsonl", "traces.jsonl", "results.jsonl", "*.eval", "*.parquet")
"""Logs that are searched in a folder."""

# With the values of inspect_ai's `Score`.
_SCORES: dict[str, float] = {**LABELS, "c": 1, "p": 0.5, "i": 0, "n": 0}


class LoggedAnswer(NamedTuple):
    """One completion; a text that the log lacks is '', and a missing score None."""

    benchmark: str
    id: str
    problem: str
    reference: str
    completion: str
    score: float | None


def read_log(path: Path) -> tuple[str, list[LoggedAnswer]]:
    """Return the name of the tool, and the answers of a file or of all logs in a folder.

    Raises:
        UserError: a file cannot be read, or has no rows.
    """
    files = [each for pattern in FILES for each in sorted(path.rglob(pattern))]
    tools, answers = dict[str, None](), list[LoggedAnswer]()
    for file in files if path.is_dir() else [path]:
        try:
            rows = list(_rows(file))
            tool = next(name for name, (keys, _) in TOOLS.items() if {*keys.split()} <= {*rows[0]})
            for row in rows:
                answers += _answers(*TOOLS[tool][1]({"stem": file.stem, **row}))
        except (LookupError, TypeError, AttributeError, OSError, ValueError) as fault:
            raise UserError(f"{file}: not a log of {', '.join(TOOLS)}: {fault!r}") from fault
        except zipfile.BadZipFile as fault:
            raise UserError(f"{file}: {fault}") from fault
        tools[tool] = None
    if not answers:
        raise UserError(f"{path}: no answers; expected a log, or a folder of {', '.join(FILES)}")
    return " and ".join(tools), answers


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_table(path).to_pylist())
    if path.suffix == ".eval":
        header, *samples = _archived(path)
        return [sample | header for sample in samples]
    if path.suffix == ".json":
        log = read_json(path, remedy="expected a log of inspect_ai")
        return [sample | {"eval": log["eval"]} for sample in log["samples"]]
    return read_records(path, dict, what="an object", remedy="expected a JSONL file")


def _archived(path: Path) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        # "header.json" before "samples/…"
        for member in sorted(archive.infolist(), key=lambda each: each.filename):
            if not re.fullmatch(r"header\.json|samples/.*\.json", member.filename):
                continue
            if member.file_size > MAX_JSON:
                raise ValueError(f"{member.filename}: longer than {MAX_JSON} bytes")
            # zstandard, which zipfile reads from Python 3.14 on
            if member.compress_type == 93:
                import pyarrow

                # A local header ends in the lengths of the name and of the extra field after it.
                file.seek(member.header_offset + 26)
                file.seek(sum(struct.unpack("<HH", file.read(4))), 1)
                compressed = file.read(member.compress_size)
                content = pyarrow.decompress(compressed, member.file_size, "zstd", asbytes=True)
            else:
                content = archive.read(member)
            yield parse_json(content)


def _number(value: Any) -> float | None:
    """Return a score as a number; None for NaN and for what is no number."""
    value = _SCORES.get(str(value).lower().removesuffix(".0"), value)
    return float(value) if isinstance(value, int | float) and value == value else None


def _answers(
    benchmark: Any, name: Any, problem: Any, reference: Any, samples: Sequence[tuple[Any, Any]]
) -> Iterator[LoggedAnswer]:
    """Yield an answer for each sample, a completion and scores of which the first number counts."""
    for completion, scores in samples:
        yield LoggedAnswer(
            str(benchmark),
            "" if name is None else str(name),
            " ".join((single_text(problem) or "").split()),
            reference_of({"reference": reference}),
            single_text(completion) or "",
            next((x for x in map(_number, scores) if x is not None), None),
        )


def _lm_eval(row: Row) -> tuple[Any, ...]:
    task = re.sub(r"^samples_|_\d{4}-\d\d-\d\dT[-.\d]+$", "", row["stem"])
    return (
        task if row["filter"] == "none" else f"{task} ({row['filter']})",
        row["doc_id"],
        column_value("problem", row["doc"]) or row["arguments"]["gen_args_0"]["arg_0"],
        row["target"],
        # Multiple choice has pairs of a log-likelihood and a flag in place of a text.
        [(row["resps"][0][0], [row[name] for name in row["metrics"]])],
    )


def _verifiers(row: Row) -> tuple[Any, ...]:
    task, samples = row["task"]["data"], []
    for trace in row["traces"]:
        rewards = [*trace["rewards"].values()]
        is_scored = rewards and all(rewards)
        scores = [sum(x["score"] * x["weight"] for x in rewards)] if is_scored else []
        replies = [node["message"] for node in trace["nodes"] if node.get("sampled")]
        samples.append((replies, scores))
    name = column_value("id", task, {"id": row["task"].get("key")})
    return row["env"]["id"], name, task.get("prompt"), column_value("reference", task), samples


def _lighteval(row: Row) -> tuple[Any, ...]:
    doc, gold = row["doc"], row["doc"]["gold_index"]
    reference = doc["choices"][gold[0] if isinstance(gold, list) else gold]
    samples = [(row["model_response"]["text"][:1], row["metric"].values())]
    return doc["task_name"], doc["id"], doc["query"], reference, samples


def _trl(row: Row) -> tuple[Any, ...]:
    rewards = [x for key, x in row.items() if key != "advantage" and isinstance(x, float)]
    reference = column_value("reference", row, {"reference": row.get("solution")})
    return "", None, row["prompt"], reference, [(row["completion"], rewards)]


def _columns(row: Row) -> tuple[Any, ...]:
    scores = [column_value("label", row), row.get("score"), row.get("reward")]
    # vLLM's outputs are the completions of one prompt.
    outputs = row.get("outputs")
    samples = outputs if isinstance(outputs, list) else [column_value("completion", row)]
    return (
        # Our graded rows are greedy or sampled.
        " ".join(str(row[key]) for key in ("benchmark", "task", "mode") if row.get(key)),
        *(column_value(column, row) for column in ("id", "problem", "reference")),
        [(each, scores) for each in samples],
    )


TOOLS: dict[str, tuple[str, Callable[[Row], tuple[Any, ...]]]] = {
    "lm-evaluation-harness": ("doc_id doc resps", _lm_eval),
    "inspect_ai": (
        "epoch input scores",
        lambda row: (
            row["eval"]["task"],
            row["id"],
            row["input"],
            row["target"],
            # A sample with an error has no score.
            [(row["output"]["completion"], [x["value"] for x in (row["scores"] or {}).values()])],
        ),
    ),
    "verifiers": ("env task traces", _verifiers),
    "lighteval": ("doc model_response metric", _lighteval),
    "TRL": ("step prompt completion advantage", _trl),
    "rows": ("", _columns),
}
"""Name of a tool -> the keys of its rows, and a row's arguments of `_answers`."""


def regrade(
    answers: Iterable[LoggedAnswer], references: Mapping[str, LoggedAnswer]
) -> tuple[list[LoggedAnswer], list[LoggedAnswer]]:
    """Judge each completion by the verifier; also return those that the tool scored otherwise.

    Args:
        references: problem's text or id -> row whose reference and problem count before a log's.
    """
    judged, disagreements = [], []
    for answer in answers:
        known = references.get(answer.problem) or references.get(answer.id)
        # Another benchmark may have the same id.
        if known and (not known.problem or answer.problem in ("", known.problem)):
            answer = answer._replace(
                reference=known.reference or answer.reference,
                problem=known.problem or answer.problem,
            )
        score = None
        if answer.reference and answer.completion:
            extracted = extract_answer(answer.completion)
            text = answer.problem or None
            score = float(is_equivalent(reference=answer.reference, answer=extracted, problem=text))
            # A reward between 0 and 1 is no verdict.
            if answer.score in (0, 1) and answer.score != score:
                disagreements.append(answer)
        judged.append(answer._replace(score=score))
    return judged, disagreements


def pairing(before: Sequence[LoggedAnswer], after: Sequence[LoggedAnswer]) -> str:
    """Return "id" if equal ids are of equal problems in both logs, else "text"."""
    one, two = ({each[:2]: each.problem for each in log} for log in (before, after))
    shared = one.keys() & two.keys()
    has_ids = shared and all(name for _, name in one.keys() | two.keys())
    return "id" if has_ids and all(one[key] == two[key] for key in shared) else "text"


def mean_scores(log: Sequence[LoggedAnswer], by: str) -> dict[str, dict[str, float]]:
    """Average the scores of each problem's completions: benchmark -> problem -> mean.

    The problem is the unit of sampling. One without any score is left out.

    Raises:
        UserError: a row has nothing to pair it by, or a score is none of 0 to 1.
    """
    scores: dict[str, dict[str, list[float]]] = {}
    for answer in log:
        problems = scores.setdefault(answer.benchmark, {})
        key = {"id": answer.id, "text": answer.problem, "order": str(len(problems))}[by]
        if not key:
            raise UserError(f"a row without {by}; pair by something else: --by id, text or order")
        if not 0 <= (answer.score or 0) <= 1:
            raise UserError(f"{key}: the score {answer.score} is no rate; judge answers: --grade")
        problems.setdefault(key, []).extend([] if answer.score is None else [answer.score])
    return {
        name: {key: fmean(values) for key, values in problems.items() if values}
        for name, problems in scores.items()
    }
