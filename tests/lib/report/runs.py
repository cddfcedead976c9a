"""Files of synthetic pipeline runs, small or large, without a model."""

import math
from pathlib import Path

import numpy as np

from lib.artifacts import write_curve, write_json, write_jsonl
from lib.artifacts.completions import read_graded
from lib.grading.metrics import headline_metrics, summarise
from lib.report.inputs import Run, load_run

CHECKPOINTS = ("base", "sft", "grpo")
STARTS = {"sft": "base", "grpo": "sft"}
BENCHMARKS = ("held_out", "harder")
FOLDERS = ("base", "graded", "rollouts", "curves", "provenance")
SKILL = {"base": 0.0, "sft": 0.33, "grpo": 0.62}
VALIDATED = [
    {
        "step": step,
        "answer_accuracy": accuracy,
        "answer_accuracy_se": 0.05,
        "harder/answer_accuracy": accuracy - 0.25,
    }
    for step, accuracy in ((0, 0.25), (50, 0.75))
]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
HOSTILE = (
    "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">",
    "``` ```` </details> | a | b |\n# heading\n[link](javascript:alert(1))",
    "\u202eright to left\u202c \x00\x07\x1b[31mred\x1b[0m \ud800 \u200f\u05e9\u05dc\u05d5\u05dd",
    "x" * 1_000_000,
)


def problem(benchmark: str, number: int) -> dict:
    level = 5 if benchmark == "harder" else 1 + number % 4
    things = ("shells", "coins", "loaves")[number % 3]
    return {
        "problem_id": f"{abs(hash_of(benchmark)) % 16**4:04x}{number:012x}",
        "problem": f"Mara has {number} {things} and gets {level} more. How many has she now?",
        "reference": str(number + level),
        "subject": things,
        "level": level,
        "tags": ["unseen_equations"] if number % 4 == 0 else [],
    }


def hash_of(text: str) -> int:
    return sum(ord(character) * 31**place for place, character in enumerate(text))


def completion(posed: dict, *, right: bool, formatted: bool, generator) -> dict:
    answer = posed["reference"] if right else str(int(posed["reference"]) + 1)
    working = f"{posed['problem_id'][-2:]} + {posed['level']} = {answer}. " * (1 + right)
    text = f"{working}<end_working_out><SOLUTION>{answer}</SOLUTION>" if formatted else working
    return {
        "completion": text,
        "answer": answer if formatted else None,
        "format_ok": formatted,
        "answer_ok": right and formatted,
        "strict_ok": right and formatted,
        "label": f"{int(formatted)}{int(right and formatted)}",
        "decided_by": "exact" if formatted else "no answer",
        "reasoning_present": formatted,
        "reasoning_chars": len(working) if formatted else 0,
        "equations": working.count("="),
        "num_tokens": int(generator.integers(10, 60)),
        "truncated": not formatted and bool(generator.random() < 0.3),
        "rewards": {"format": float(formatted), "answer": float(right and formatted)},
        "reward": 0.25 * formatted + 1.0 * (right and formatted),
    }


def completion_rows(checkpoint: str, *, skill: float, problems: int, samples: int) -> list[dict]:
    generator = np.random.default_rng(hash_of(checkpoint) % 2**32)
    rows = []
    for benchmark, count in zip(BENCHMARKS, (problems, max(2, problems // 3)), strict=True):
        for mode, draws in (("greedy", 1), ("sampled", samples)):
            for number in range(count):
                posed = problem(benchmark, number)
                chance = skill * (1.3 - 0.2 * posed["level"] + 0.2 * (mode == "greedy"))
                for draw in range(draws):
                    right = bool(generator.random() < chance)
                    formatted = checkpoint != "base" and bool(generator.random() < 0.98)
                    rows.append(
                        {"checkpoint": checkpoint, "benchmark": benchmark, "mode": mode}
                        | posed
                        | {"sample": draw}
                        | completion(posed, right=right, formatted=formatted, generator=generator)
                    )
    return rows


def write_run(
    folder: Path, *, problems: int = 24, samples: int = 4, skill=SKILL, hostile=(), skipped=()
) -> Path:
    """Write a run's files under `folder`, one checkpoint per skill.

    Hostile texts replace the first completions of each file.
    """
    write_text(folder / "base" / "chat_template.jinja", TEMPLATE)
    write_json(folder / "base" / "tokenizer_config.json", {"bos_token": {"content": "<bos>"}})
    for checkpoint in skill:
        rows = completion_rows(
            checkpoint, skill=skill[checkpoint], problems=problems, samples=samples
        )
        for row, text in zip(rows, hostile, strict=False):
            row["completion"] = row["answer"] = text
        write_jsonl(folder / "graded" / f"{checkpoint}.jsonl", rows)
        summary = summarise(read_graded(folder / "graded" / f"{checkpoint}.jsonl"))
        write_json(folder / "graded" / f"{checkpoint}.json", summary)
        write_json(
            folder / "metrics" / "evaluate" / f"{checkpoint}.json", headline_metrics(summary)
        )
        write_json(folder / "provenance" / "evaluate" / f"{checkpoint}.json", noted(checkpoint))
    for stage in ("prepare", "sft", "grpo", "export"):
        write_json(folder / "provenance" / f"{stage}.json", noted(stage, skipped=stage in skipped))
        write_json(folder / "metrics" / f"{stage}.json", {"bare_answer_share": 0.6})
    write_curve(folder / "curves" / "sft.csv", sft_curve(0 if "sft" in skipped else 120))
    write_curve(folder / "curves" / "grpo.csv", grpo_curve(0 if "grpo" in skipped else 50))
    write_curve(folder / "curves" / "grpo_validation.csv", VALIDATED)
    write_jsonl(
        folder / "rollouts" / "grpo.jsonl", training_rollouts(0 if "grpo" in skipped else 12)
    )
    return folder


def load(folder: Path, **settings) -> Run:
    return read(write_run(folder, **settings))


def read(folder: Path, *, exported: str = "grpo", checkpoints=CHECKPOINTS, starts=STARTS) -> Run:
    return load_run(
        checkpoints=checkpoints,
        starts=starts,
        benchmarks=BENCHMARKS,
        exported=exported,
        stage_metrics=folder / "metrics",
        **{name: folder / name for name in FOLDERS},
    )


def noted(stage: str, *, skipped: bool = False) -> dict:
    return {
        "settings": {
            "seed": 0,
            "sft": {"learning_rate": 0.003},
            "validation": {"num_problems": 64},
        },
        "versions": {"torch": "2.13.0"},
        "inputs": {"problems": "0123456789abcdef"},
        "skipped": skipped,
        "stage": stage,
        "prompt": {"system": "Think."},
    }


def sft_curve(steps: int) -> list[dict]:
    names = ("loss", "mean_token_accuracy", "entropy", "grad_norm", "learning_rate")
    return [
        {"step": 25 * step, **dict.fromkeys(names, math.exp(-step / 20))}
        for step in range(1, steps + 1)
    ]


def grpo_curve(steps: int) -> list[dict]:
    rising = ("reward", "rewards/answer/mean", "completions/mean_length", "entropy", "loss")
    rising += ("frac_reward_zero_std", "completions/clipped_ratio", "clip_ratio/region_mean")
    return [
        {"step": step, **dict.fromkeys(rising, 0.3 + 0.2 * step / steps)}
        | {"rewards/format/mean": 0.99, "grad_norm": 0.0, "kl": "" if step % 2 else 0.001 * step}
        for step in range(1, steps + 1)
    ]


def training_rollouts(steps: int, *, problems: int = 3) -> list[dict]:
    """Make groups of two; the first answer is right in the second half of the training."""
    rows = []
    for step in range(1, steps + 1):
        posed = problem("train", step % problems)
        for sample in range(2):
            right = sample == 0 and step > steps / 2
            rows.append(
                {
                    "step": step,
                    "problem": posed["problem"],
                    "reference": posed["reference"],
                    "prompt": f"<user>{posed['problem']}</user>",
                    "sample": sample,
                    "completion": f"step {step}: {posed['reference'] if right else '?'}",
                    "rewards": {"format": 1.0, "answer": float(right)},
                    "reward": 0.25 + right,
                    "advantage": 1.0 if right else -1.0 if step > steps / 2 else 0.0,
                    "num_tokens": 8,
                    "num_loss_tokens": 8 if right else 0,
                    "truncated": not right,
                    "log_prob_gap": 1e-6 if right else None,
                    "extra": {"letters": sample},
                }
            )
    return rows


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
