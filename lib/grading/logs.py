"""Read logs of evaluation tools: each answer with the tool's own score.

The form of the first row tells the tool: lm-evaluation-harness (`samples_*.jsonl`), inspect_ai
(`.eval`, `.json`), verifiers and prime-rl (`traces.jsonl`), lighteval (details, Parquet), TRL
(completions, Parquet); any other file has columns with usual names, such as OpenAI's batches,
vLLM's outputs and our graded rows (`lib.grading.external.COLUMN_NAMES`).
"""

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lib.artifacts import MAX_JSON, parse_json, read_json, read_records
from lib.core.errors import UserError
from lib.grading.external import LABELS, column_value, reference_of, single_text

Row = Mapping[str, Any]

FILES = ("samples_*.jsonl", "traces.jsonl", "*.eval", "*.parquet")
"""Logs that are searched in a folder."""

_ZSTANDARD = 93
"""Compression of inspect_ai's archives, which zipfile reads from Python 3.14 on."""

# The values of inspect_ai's `Score`.
_SCORES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


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
            known = (tool for tool, (keys, _) in TOOLS.items() if keys <= rows[0].keys())
            tool = next(known) if rows else ""
            answers += [answer for row in rows for answer in TOOLS[tool][1](row, file.stem)]
        except (KeyError, TypeError, AttributeError, IndexError, OSError, ValueError) as fault:
            raise UserError(
                f"{file}: not a log of {'/'.join(filter(None, TOOLS))}: {fault!r}"
            ) from fault
        except zipfile.BadZipFile as fault:
            raise UserError(f"{file}: {fault}") from fault
        tools[tool] = None
    if not answers:
        raise UserError(f"{path}: no answers; expected a log, or a folder of {', '.join(FILES)}")
    return " and ".join(tools), answers


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        yield from pyarrow.parquet.read_table(path).to_pylist()
    elif path.suffix == ".eval":
        yield from _archived(path)
    elif path.suffix == ".json":
        log = read_json(path, remedy="expected a log of inspect_ai")
        yield from (sample | {"task": log["eval"]["task"]} for sample in log["samples"])
    else:
        yield from read_records(path, dict, what="an object", remedy="expected a JSONL file")


def _archived(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the samples of an archive of inspect_ai, each with its `task`."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        task = ""
        # "header.json" before "samples/…"
        for member in sorted(archive.infolist(), key=lambda each: each.filename):
            if not re.fullmatch(r"header\.json|samples/.*\.json", member.filename):
                continue
            if member.file_size > MAX_JSON:
                raise ValueError(f"{member.filename}: longer than {MAX_JSON} bytes")
            if member.compress_type == _ZSTANDARD:
                import pyarrow

                # A local header of 30 bytes, then name and extra field, whose lengths end it.
                file.seek(member.header_offset + 26)
                lengths = file.read(4)
                file.seek(sum(int.from_bytes(lengths[n : n + 2], "little") for n in (0, 2)), 1)
                compressed = file.read(member.compress_size)
                text = pyarrow.decompress(
                    compressed, decompressed_size=member.file_size, codec="zstd", asbytes=True
                )
            else:
                text = archive.read(member)
            content = parse_json(text)
            task = task or content["eval"]["task"]
            if member.filename != "header.json":
                yield content | {"task": task}


def _number(value: Any) -> float | None:
    """Return a score as a number; None for NaN and for what is no number."""
    value = _SCORES.get(value, value) if isinstance(value, str) else value
    return float(value) if isinstance(value, int | float) and value == value else None


def _first_number(values: Mapping[str, Any]) -> float | None:
    return next((x for x in map(_number, values.values()) if x is not None), None)


def _lm_eval(row: Row, stem: str) -> Iterator[LoggedAnswer]:
    task = re.sub(r"^samples_|_\d{4}-\d\d-\d\dT[-.\d]+$", "", stem)
    name = task if row["filter"] == "none" else f"{task} ({row['filter']})"
    prompt = row["arguments"]["gen_args_0"]["arg_0"]
    problem = single_text(column_value("problem", row["doc"])) or prompt
    # Multiple choice has pairs of a log-likelihood and a flag.
    text = row["resps"][0][0]
    score = _first_number({name: row[name] for name in row["metrics"]})
    reference = reference_of({"target": row["target"]})
    completion = text if isinstance(text, str) else ""
    yield LoggedAnswer(name, str(row["doc_id"]), problem, reference, completion, score)


def _inspect(row: Row, stem: str) -> Iterator[LoggedAnswer]:
    # The first scorer counts; a sample with an error has none.
    scores = {name: each["value"] for name, each in (row["scores"] or {}).items()}
    problem, completion = single_text(row["input"]) or "", row["output"]["completion"]
    reference = reference_of({"target": row["target"]})
    yield LoggedAnswer(
        row["task"], str(row["id"]), problem, reference, completion, _first_number(scores)
    )


def _verifiers(row: Row, stem: str) -> Iterator[LoggedAnswer]:
    task = row["task"]["data"]
    name = next((str(x) for x in (task.get("id"), row["task"].get("key")) if x is not None), "")
    for trace in row["traces"]:
        rewards = [*trace["rewards"].values()]
        is_scored = rewards and None not in rewards
        score = sum(each["score"] * each["weight"] for each in rewards) if is_scored else None
        replies = [node["message"] for node in trace["nodes"] if node.get("sampled")]
        completion = single_text(replies[-1]) if replies else ""
        problem = single_text(task.get("prompt")) or ""
        yield LoggedAnswer(
            row["env"]["id"], name, problem, reference_of(task), completion or "", score
        )


def _lighteval(row: Row, stem: str) -> Iterator[LoggedAnswer]:
    doc, texts = row["doc"], row["model_response"]["text"]
    gold = doc["gold_index"]
    reference = str(doc["choices"][gold[0] if isinstance(gold, list) else gold]).strip()
    score, completion = _first_number(row["metric"]), texts[0] if texts else ""
    yield LoggedAnswer(doc["task_name"], doc["id"], doc["query"], reference, completion, score)


def _trl(row: Row, stem: str) -> Iterator[LoggedAnswer]:
    # The first reward function counts.
    rewards = {name: x for name, x in row.items() if name not in ("step", "advantage")}
    problem, completion = (single_text(row[name]) or "" for name in ("prompt", "completion"))
    reference = reference_of(row) or reference_of({"reference": row.get("solution")})
    yield LoggedAnswer("", "", problem, reference, completion, _first_number(rewards))


def _columns(row: Row, stem: str) -> Iterator[LoggedAnswer]:
    name, label = (column_value(column, row) for column in ("id", "label"))
    is_right = LABELS.get(str(label).lower().removesuffix(".0"))
    score = _first_number({"label": is_right} | {key: row.get(key) for key in ("score", "reward")})
    benchmark = str(row.get("benchmark") or row.get("task") or "")
    problem = single_text(column_value("problem", row)) or ""
    # vLLM's outputs are the completions of one prompt.
    samples = row.get("outputs")
    for each in samples if isinstance(samples, list) else [column_value("completion", row)]:
        yield LoggedAnswer(
            benchmark,
            "" if name is None else str(name),
            problem,
            reference_of(row),
            single_text(each) or "",
            score,
        )


Reader = Callable[[Row, str], Iterator[LoggedAnswer]]
TOOLS: dict[str, tuple[set[str], Reader]] = {
    "lm-evaluation-harness": ({"doc_id", "doc", "resps"}, _lm_eval),
    "inspect_ai": ({"epoch", "input", "scores"}, _inspect),
    "verifiers": ({"env", "task", "traces"}, _verifiers),
    "lighteval": ({"doc", "model_response", "metric"}, _lighteval),
    "TRL": ({"step", "prompt", "completion", "advantage"}, _trl),
    "": (set(), _columns),
}
"""Name of a tool -> the keys of its rows, and the reader of a row and its file's stem."""
