"""Adapters: convert a public set's rows into problems where the column table cannot read them.

Each docstring shows the raw fields from the set's public card. A source in params names its
adapter. `table` is the column table (`lib.problems.columns`), enough for most sets, GSM8K
(huggingface.co/datasets/openai/gsm8k) and MATH (huggingface.co/datasets/EleutherAI/hendrycks_math)
among them::

    {"question": "Natalia sold …", "answer": "… 48/2 = <<48/2=24>>24 clips …\\n#### 72"}
    {"problem": "…", "level": "Level 5", "type": "Algebra", "solution": "… \\\\boxed{2}."}
"""

import re
from collections.abc import Callable, Mapping

from lib.artifacts.problems import INSTRUCTION, MULTIPLE_CHOICE, RESPONSE, Problem
from lib.core.errors import UserError
from lib.core.plugins import guarded, load_plugin
from lib.problems.columns import (
    FIELD_COLUMNS,
    OTHER_COLUMNS,
    label,
    required_text,
    text_of,
    to_problem,
)
from lib.problems.rows import Fields, RowFault
from lib.prompts.targets import response_parts

LETTERS = ("A", "B", "C", "D")


Adapter = Callable[[Fields, Mapping[str, str]], Problem]
"""Called with a row's fields, and the columns by record field from params."""


def math_jsonl(fields: Fields, columns: Mapping[str, str]) -> Problem:
    """Convert a MATH problem with a model's response, which SFT learns unchanged.

    Two forms of rows occur; in the second, the prompt is already in the `r1_zero` template::

        {"prompt": "What is …?", "response": "… \\boxed{2}.", "ground_truth": "2"}
        {"prompt": "A conversation … User: What is …? Assistant: <think>", "answer": "2",
         "response": " … </think> <answer> 2 </answer>"}

    The response is the solution. It may be wrong, so it is never the source of the reference: that
    is in another column (`ground_truth`, `answer`), or `prepare` takes it from the source in the
    param `prepare.sft.truth_from`.

    Raises:
        RowFault: prompt or response is missing, or the response marks no answer.
    """
    response_column = columns.get("solution", "response")
    response = required_text(fields, (response_column,), field="solution")
    # None: no `<answer>` tags and no box. From such a response, SFT would learn not to answer.
    if response_parts(response) is None:
        detail = "marks no answer, as if cut off; expected <answer> or \\boxed{}"
        raise RowFault("no_answer", field=response_column, detail=detail)
    prompt_column = columns.get("problem", "prompt")
    # A prompt of chat messages gives the text of its user turn.
    prompt = required_text(fields, (prompt_column,), field="problem", role="user")
    # Of a prompt in the `r1_zero` template, only the question is kept (group 1): training puts the
    # text of its own prompt format around it.
    template = re.fullmatch(r"A conversation between .*?\bUser: (.*?)\s*Assistant:.*", prompt, re.S)
    cleaned = {**fields, "prompt": template[1] if template else prompt}
    source_columns = {**columns, "problem": "prompt", "solution": response_column}
    # RESPONSE: `to_problem` keeps the spacing of the solution, and reads the reference from the
    # other columns only.
    return to_problem(cleaned, source_columns, tags=(RESPONSE,))


def open_math_reasoning(fields: Fields, columns: Mapping[str, str]) -> Problem:
    """Convert OpenMathReasoning and its `-mini` (huggingface.co/datasets/nvidia/OpenMathReasoning).

    ::

        {"problem": "…", "generated_solution": "<think>\\n…\\n</think>\\n… \\\\boxed{2}",
         "expected_answer": "2", "problem_type": "has_answer_extracted",
         "problem_source": "aops_c6_high_school_olympiads", "generation_model": "DeepSeek-R1",
         "pass_rate_72b_tir": "0.5", "inference_mode": "cot"}

    The solution is `generated_solution` without its two `<think>` tags, since a prompt format puts
    its own tags around it; the text between and after them stays. The column table reads the other
    fields: the reference is `expected_answer`.
    """
    column = columns.get("solution", "generated_solution")
    generated = required_text(fields, (column,), field="solution")
    solution = re.sub(r"</?think>", "", generated).strip()
    return to_problem({**fields, column: solution}, columns)


# The instructions before and after every question of the released set; the processed set has
# neither. The docstring of `dapo` quotes both.
_DAPO_PREFIX = re.compile(r"\s*Solve the following math problem step by step\..*?\n\s*\n", re.S)
_DAPO_SUFFIX = re.compile(
    r'\n\s*\n?Remember to put your answer on its own line after "Answer:".*', re.S
)


def dapo(fields: Fields, columns: Mapping[str, str]) -> Problem:
    """Convert DAPO-Math-17k, in its processed or released form.

    Of the released form, the instructions before and after the question are removed.

    huggingface.co/datasets/open-r1/DAPO-Math-17k-Processed::

        {"prompt": "In triangle …", "solution": "34", "source_prompt": [{"role": "user", …}],
         "ability": "MATH", "data_source": "math_dapo",
         "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"}}

    huggingface.co/datasets/BytedTsinghua-SIA/DAPO-Math-17k::

        {"prompt": [{"role": "user", "content": "Solve the following math problem step by step. …
         \\n\\nIn triangle …\\n\\nRemember to put your answer on its own line after …"}],
         "reward_model": {"ground_truth": "34", …}}
    """
    column = columns.get("problem", "prompt")
    # Of the released form's chat messages, the text of the user turn.
    prompt = required_text(fields, (column,), field="problem", role="user")
    # "Solve the following … step by step. …" before, "Remember to put your answer …" after.
    question = _DAPO_SUFFIX.sub("", _DAPO_PREFIX.sub("", prompt, count=1)).strip()
    reward_model = fields.get("reward_model")
    truth = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
    # `solution` is the processed form's name for the answer. The column table accepts it as the
    # reference, since it is only an answer.
    answer = fields.get("solution") or truth
    return to_problem({**fields, column: question, "solution": answer}, columns)


def mmlu(fields: Fields, columns: Mapping[str, str]) -> Problem:
    """Convert MMLU: the problem is the question with four options, the reference a letter.

    `columns` is not read: the names of MMLU's columns are fixed.

    The release (github.com/hendrycks/test) has CSV files `<subject>_test.csv` without a header. The
    reader names their columns question, A, B, C, D and answer, and adds the file's name as `file`::

        Find the degree of …,0,4,2,6,B

    huggingface.co/datasets/cais/mmlu::

        {"question": "Find …", "subject": "abstract_algebra", "choices": ["0", "4", "2", "6"],
         "answer": 1}
    """
    question = required_text(fields, ("question",), field="problem", role="user")
    # Rows of the Hub have one list, CSV rows a column per letter.
    options = fields.get("choices") or [fields.get(letter) for letter in LETTERS]
    if not isinstance(options, list) or len(options) != 4:
        raise RowFault("wrong_type", field="choices", detail="expected four options")
    # Option texts by letter. `required_text` refuses an empty one, and names its letter.
    by_letter = dict(zip(LETTERS, options, strict=True))
    lines = [f"{letter}. {required_text(by_letter, (letter,), field=letter)}" for letter in LETTERS]
    answer = str(fields.get("answer")).strip()
    # On the Hub the answer is the index of the option, from 0; in CSV files it is the letter.
    reference = dict(zip("0123", LETTERS, strict=True)).get(answer, answer)
    if reference not in LETTERS:
        detail = f"expected A, B, C, D or 0 to 3, found {fields.get('answer')!r}"
        raise RowFault("wrong_type", field="answer", detail=detail)
    # CSV rows have no subject, but their file's name has: "algebra_test" -> "algebra".
    subject = fields.get("subject") or re.sub(r"_(test|dev|val)$", "", str(fields.get("file", "")))
    return Problem.create(
        problem="\n".join([question, *lines]),
        reference=reference,
        subject=label(subject),
        tags=(MULTIPLE_CHOICE,),
    )


def olympiadbench(fields: Fields, columns: Mapping[str, str]) -> Problem:
    """Convert OlympiadBench, open-ended (huggingface.co/datasets/Hothan/OlympiadBench).

    ::

        {"question": "…", "solution": ["…"], "final_answer": ["$2$"], "unit": null,
         "is_multiple_answer": false, "answer_type": "Numerical", "subfield": "Algebra"}

    The reference is the final answer, several of them joined by commas; the unit is not part of it.
    Of several solutions the first is taken, since a `Problem` has one.
    """
    answers = fields.get("final_answer") or []
    solutions = fields.get("solution") or []
    if not isinstance(answers, list) or not isinstance(solutions, list):
        raise RowFault("wrong_type", field="final_answer", detail="expected lists of texts")
    reference = ", ".join(text_of(answer, "final_answer") for answer in answers)
    converted = {**fields, "answer": reference, "solution": solutions[0] if solutions else ""}
    # The reference's column is named, so that even a long text in it counts as the answer.
    return to_problem(converted, {"reference": "answer", **columns})


def alpaca_eval(fields: Fields, columns: Mapping[str, str]) -> Problem:
    """Convert an AlpacaEval instruction; its reference is '', since a judge compares outputs.

    `columns` is not read: the names of the columns are fixed. The subject is the row's `dataset`.

    huggingface.co/datasets/tatsu-lab/alpaca_eval, `alpaca_eval.json`, a JSON array::

        [{"dataset": "helpful_base", "instruction": "What are …?", "output": "…",
          "generator": "text_davinci_003"}]
    """
    return Problem.create(
        problem=required_text(fields, ("instruction",), field="problem"),
        reference="",
        subject=label(fields.get("dataset") or ""),
        tags=(INSTRUCTION,),
    )


def own_adapter(name: str) -> Adapter:
    """Load the plugin `name` and return an adapter that calls it.

    The plugin is a function from a row to a mapping with the column table's names, such as
    `{"problem": …, "answer": …}`; the table then converts that mapping. If the function fails or
    returns no mapping for a row, the adapter raises RowFault, as for any row without a problem.

    Raises:
        UserError: the plugin is missing or no function.
    """
    rename = load_plugin(name)
    if not callable(rename):
        raise UserError(f"{name}: expected a function from a row to a mapping, got {rename!r}")

    def convert(fields: Fields, columns: Mapping[str, str]) -> Problem:
        try:
            # Turns any exception of the plugin into a UserError that shows the start of the row.
            with guarded(name, inputs=f"the row {str(fields)[:80]}"):
                # A copy, since the plugin may change its argument.
                renamed = rename(dict(fields))
        except UserError as error:
            raise RowFault("unreadable", detail=error.message) from error
        if not isinstance(renamed, Mapping):
            raise RowFault("unreadable", detail=f"{name} returned {renamed!r}; expected a mapping")
        return to_problem(renamed, columns)

    return convert


ADAPTERS: dict[str, Adapter] = {
    "table": to_problem,
    "math_jsonl": math_jsonl,
    "open_math_reasoning": open_math_reasoning,
    "dapo": dapo,
    "mmlu": mmlu,
    "olympiadbench": olympiadbench,
    "alpaca_eval": alpaca_eval,
}
"""Adapters by their name in params."""

COLUMNS = frozenset(
    (
        *(name for names in FIELD_COLUMNS.values() for name in names),
        *(name.split(".")[0] for names in OTHER_COLUMNS.values() for name in names),
        *("reward_model", "final_answer", "choices", *LETTERS, "file", "instruction", "dataset"),
    )
)
"""All columns that an adapter of this module reads or a guess needs: no other one of a Parquet file
is read."""

CSV_NAMES = {"mmlu": ("question", *LETTERS, "answer")}
"""Columns of CSV files without a header, by adapter."""
