"""Print whether answers are equal to references, and the rule that decided each.

python -m reckon_verifier REFERENCE ANSWER [--problem TEXT]
python -m reckon_verifier FILE.jsonl    rows with reference, answer or completion, and problem
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reckon_verifier.equivalence import compare, reference_problem
from reckon_verifier.extract import extract_answer
from reckon_verifier.rules import DESCRIPTIONS


def main(arguments: list[str] | None = None) -> None:
    """Print one verdict, `equal: number, rational numbers, exactly`, or each row's as JSON."""
    parser = argparse.ArgumentParser("python -m reckon_verifier", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("reference", metavar="REFERENCE|FILE.jsonl")
    parser.add_argument("answer", nargs="?")
    parser.add_argument("--problem", help="text of the problem, which may settle the answer")
    options = parser.parse_args(arguments)
    if options.answer is None:
        num_equal = num_rows = 0
        for row in _graded(options.reference):
            num_rows += 1
            num_equal += row["equal"]
            print(json.dumps(row, ensure_ascii=False))  # noqa: T201
        sys.stderr.write(f"{num_equal} of {num_rows} are equal to their references\n")
        return
    if fault := reference_problem(options.reference):
        sys.exit(f"Error: REFERENCE {options.reference!r} cannot be compared: {fault}")
    verdict = compare(reference=options.reference, answer=options.answer, problem=options.problem)
    relation, step = "equal" if verdict.equal else "not equal", verdict.decided_by
    print(f"{relation}: {step}, {DESCRIPTIONS[step]}")  # noqa: T201


def _graded(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSONL file with `answer`, `equal` and `decided_by`."""
    try:
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                place = f"{path}, line {number}"
                row = json.loads(line) if line.strip() else {}
                if not isinstance(row, dict) or not isinstance(row.get("reference"), str):
                    sys.exit(f"Error: {place}: no object with a text `reference`")
                if not row.keys() & {"answer", "completion"}:
                    sys.exit(f"Error: {place}: neither `answer` nor `completion`")
                if "answer" not in row:
                    row["answer"] = extract_answer(row["completion"])
                verdict = compare(
                    reference=row["reference"], answer=row["answer"], problem=row.get("problem")
                )
                yield row | {"equal": verdict.equal, "decided_by": verdict.decided_by}
    except (OSError, UnicodeDecodeError) as fault:
        sys.exit(f"Error: {path} cannot be read: {fault}")
    except json.JSONDecodeError as fault:
        sys.exit(f"Error: {place} is no JSON: {fault.msg}")


if __name__ == "__main__":
    main()
