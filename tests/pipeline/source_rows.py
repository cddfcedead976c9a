"""Synthetic rows in the columns of the presets' sets, after their public cards."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lib.artifacts import write_jsonl
from lib.artifacts.problems import Problem
from lib.problems.sources import adapter_of

Row = dict[str, Any]


def gsm8k(problem: Problem) -> Row:
    return {
        "question": problem.problem,
        "answer": f"{problem.solution}\n#### {problem.reference}",
    }


def math(problem: Problem) -> Row:
    return {
        "problem": problem.problem,
        "level": "Level 2",
        "type": "Prealgebra",
        "solution": f"{problem.solution} So it is $\\boxed{{{problem.reference}}}$.",
    }


def math_jsonl(problem: Problem) -> Row:
    return {
        "prompt": problem.problem,
        "response": f"{problem.solution} So it is $\\boxed{{{problem.reference}}}$.",
    }


def math500(problem: Problem) -> Row:
    row = math(problem)
    return {
        "problem": row["problem"],
        "solution": row["solution"],
        "answer": problem.reference,
        "subject": "Prealgebra",
        "level": 2,
        "unique_id": f"test/prealgebra/{problem.id}.json",
    }


def bare(problem: Problem) -> Row:
    return {"problem": problem.problem, "answer": problem.reference}


def open_math_reasoning(problem: Problem) -> Row:
    working = f"<think>\n{problem.solution}\n</think>\nSo \\boxed{{{problem.reference}}}"
    return {
        "problem": problem.problem,
        "generated_solution": working,
        "expected_answer": problem.reference,
        "problem_type": "has_answer_extracted",
        "problem_source": "aops_c6_high_school_olympiads",
        "generation_model": "DeepSeek-R1",
        "pass_rate_72b_tir": "0.5",
        "inference_mode": "cot",
    }


def dapo(problem: Problem) -> Row:
    return {
        "prompt": problem.problem,
        "solution": problem.reference,
        "source_prompt": [{"role": "user", "content": problem.problem}],
        "ability": "MATH",
        "data_source": "math_dapo",
        "reward_model": {"ground_truth": problem.reference, "style": "rule-lighteval/MATH_v2"},
    }


def mmlu(problem: Problem) -> Row:
    return {
        "question": problem.problem,
        "subject": "elementary_mathematics",
        "choices": [problem.reference, "no", "none", "never"],
        "answer": 0,
    }


def olympiadbench(problem: Problem) -> Row:
    return {
        "question": problem.problem,
        "solution": [problem.solution],
        "final_answer": [f"${problem.reference}$"],
        "unit": None,
        "is_multiple_answer": False,
        "answer_type": "Numerical",
        "subfield": "Algebra",
    }


ROWS: dict[str, Callable[[Problem], Row]] = {
    "gsm8k_train": gsm8k,
    "gsm8k": gsm8k,
    "dapo": dapo,
    "math500": math500,
    "open_math_reasoning": open_math_reasoning,
    "open_math_reasoning_mini": open_math_reasoning,
    "math_sft": math,
    "math_jsonl": math_jsonl,
    "math_train": math,
    "math": math,
    "aime24": bare,
    "aime25": bare,
    "aime26": bare,
    "amc23": bare,
    "minerva": bare,
    "olympiadbench": olympiadbench,
    "mmlu": mmlu,
}
"""Function from a problem to a row, by the name of a known set or an adapter."""


def lay_out(content: dict[str, Any], root: Path, *, worked: Sequence[Problem]) -> None:
    """Write every source of `content` (a params.yaml), and point the params at its file.

    Args:
        root: the checkout, for data/raw.
        worked: problems of the training sets; each benchmark gets two sums of its own.
    """
    prepare = content["prepare"]
    for entry in (*prepare["sft"]["sources"], *prepare["grpo"]["sources"]):
        entry["source"] = _written(entry["source"], root, worked)
    truth = prepare["sft"]["truth_from"]
    truth[:] = [_written(source, root, worked) for source in truth]
    for number, entry in enumerate(prepare["benchmarks"]):
        sums = [_sum(2 * number + step) for step in (1, 2)]
        entry["source"] = _written(entry["source"], root, sums)


def _sum(number: int) -> Problem:
    total = 7 * number + 5
    return Problem.create(
        problem=f"Compute $7 \\cdot {number} + 5$.",
        reference=str(total),
        solution=f"7 times {number} and 5 is {total}.",
    )


def _written(source: dict[str, Any], root: Path, problems: Sequence[Problem]) -> dict[str, Any]:
    name = source.get("known") or source["adapter"]
    path = source.get("path") or f"data/raw/{name}-rows.jsonl"
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [ROWS[name](problem) for problem in problems]
    write_jsonl(file, rows)
    adapter = adapter_of(name) if "known" in source else name
    return {"path": path, "adapter": adapter, "columns": {}, "limit": source["limit"]}
