"""Task files for lm-eval: with them, others can measure the export on the generated benchmarks."""

import re
from collections.abc import Iterable
from pathlib import Path

from ruamel.yaml import YAML

from lib.artifacts import write_jsonl
from lib.artifacts.problems import Problem
from lib.prompts import PromptFormat, TaggedFormat

TASKS = "tasks"
"""Folder of the task files in an export."""


def write_task(
    export: Path,
    name: str,
    problems: Iterable[Problem],
    *,
    prompt_format: PromptFormat,
    max_new_tokens: int,
) -> None:
    """Write a benchmark to `tasks/<name>.jsonl`, and its task for lm-eval to `tasks/<name>.yaml`.

    Args:
        export: the export; lm-eval has to be run in this folder.
        name: the benchmark.
        max_new_tokens: longest completion, in tokens.
    """
    rows = ({"problem": each.problem, "reference": each.reference} for each in problems)
    problems_file = f"{TASKS}/{name}.jsonl"
    (export / TASKS).mkdir(exist_ok=True)
    write_jsonl(export / problems_file, rows)
    answer_filter = {
        "function": "regex",
        "regex_pattern": answer_pattern(prompt_format),
        # Of several matches in a completion, the last one counts.
        "group_select": -1,
    }
    task = {
        "task": name,
        "dataset_path": "json",
        # lm-eval reads this path from the working directory, so the export may be moved.
        "dataset_kwargs": {"data_files": {"test": problems_file}},
        "test_split": "test",
        "output_type": "generate_until",
        # Templates, which lm-eval fills in with the fields of a row.
        "doc_to_text": "{{problem}}",
        "doc_to_target": "{{reference}}",
        "generation_kwargs": {
            "do_sample": False,
            "max_gen_toks": max_new_tokens,
            "until": list(prompt_format.stop_strings),
        },
        # take_first: the answer of the first completion; greedy decoding generates only one.
        "filter_list": [{"name": "answer", "filter": [answer_filter, {"function": "take_first"}]}],
        "metric_list": [{"metric": "exact_match"}],
    }
    with (export / TASKS / f"{name}.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(task, file)


def answer_pattern(prompt_format: PromptFormat) -> str:
    r"""Return a regular expression with one group, the answer in a completion.

    It matches "42" in "\boxed{42}" or "<answer>42</answer>". lm-eval removes the stop string from a
    completion. If that was the closing tag, the answer ends with the completion: "<answer>42".
    """
    if not isinstance(prompt_format, TaggedFormat):
        # A regular expression cannot balance nested braces; answers of generated benchmarks are
        # whole numbers, without braces.
        return r"\\boxed\s*\{([^{}]*)\}"
    # The format's two tags around the answer.
    opening, closing = map(re.escape, prompt_format.answer)
    end = rf"(?:{closing}|\Z)" if prompt_format.stop_strings else closing
    return rf"{opening}([\s\S]*?){end}"
