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
from lib.problems.columns import required_text, text_of, to_problem
from lib.problems.rows import Fields, RowFault
from lib.prompts.formats import response_parts

LETTERS = ("A", "B", "C", "D")


Adapter = Callable[[Fields, Mapping[str, str]], Problem]
"""Called with a row's fields, and the columns by record field from params."""


def math_jsonl(fields: Fields, columns: Mapping[str, str]) -> Problem:
    """Convert MATH as JSON lines with a model's responses, which SFT learns as they are.

    ::

        {"prompt": "What is …?", "response": "… \\boxed{2}.", "ground_truth": "2"}
        {"prompt": "A conversation … User: What is …? Assistant: <think>", "answer": "2",
         "response": " … </think> <answer> 2 </answer>"}

    The response may be wrong, so the reference is read from another column (`ground_truth`,
    `answer`), or from the sets that the param `prepare.sft.truth_from` names.
    """
    answer_column = columns.get("solution", "response")
    response = required_text(fields, (answer_column,), field="solution")
    # From a response without an answer, SFT would learn not to answer.
    if response_parts(response) is None:
        detail = "marks no answer, as if cut off; expected <answer> or \\boxed{}"
        raise RowFault("no_answer", field=answer_column, detail=detail)
    column = columns.get("problem", "prompt")
    prompt = required_text(fields, (column,), field="problem", role="user")
    # If the prompt is already in the `r1_zero` template, only the question inside it is kept, since
    # the prompt format adds its own text.
    inside = re.fullmatch(r"A conversation between .*?\bUser: (.*?)\s*Assistant:.*", prompt, re.S)
    own = {**fields, "prompt": inside[1] if inside else prompt}
    renamed = {**columns, "problem": "prompt", "solution": answer_column}
    return to_problem(own, renamed, tags=(RESPONSE,))


def open_math_reasoning(fields: Fields, columns: Mapping[str, str]) -> Problem:
    """Convert OpenMathReasoning and its `-mini` (huggingface.co/datasets/nvidia/OpenMathReasoning).

    ::

        {"problem": "…", "generated_solution": "<think>\\n…\\n</think>\\n… \\\\boxed{2}",
         "expected_answer": "2", "problem_type": "has_answer_extracted",
         "problem_source": "aops_c6_high_school_olympiads", "generation_model": "DeepSeek-R1",
         "pass_rate_72b_tir": "0.5", "inference_mode": "cot"}

    The model's `<think>` tags are removed; the text between and after them is the solution. A
    prompt format puts its own tags around it.
    """
    generated = required_text(fields, ("generated_solution",), field="solution")
    solution = re.sub(r"</?think>", "", generated).strip()
    return to_problem({**fields, "generated_solution": solution}, columns)


# The instructions before and after every question of the released set; the processed set has
# neither. Both are quoted in `dapo`.
_DAPO_PREFIX = re.compile(r"\s*Solve the following math problem step by step\..*?\n\s*\n", re.S)
_DAPO_SUFFIX = re.compile(
    r'\n\s*\n?Remember to put your answer on its own line after "Answer:".*', re.S
)


def dapo(fields: Fields, columns: Mapping[str, str]) -> Problem:
    """Convert DAPO-Math-17k, released or processed, without the instructions around the question.

    huggingface.co/datasets/open-r1/DAPO-Math-17k-Processed::

        {"prompt": "In triangle …", "solution": "34", "source_prompt": [{"role": "user", …}],
         "ability": "MATH", "data_source": "math_dapo",
         "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"}}

    huggingface.co/datasets/BytedTsinghua-SIA/DAPO-Math-17k::

        {"prompt": [{"role": "user", "content": "Solve the following math problem step by step. …
         \\n\\nIn triangle …\\n\\nRemember to put your answer on its own line after …"}],
         "reward_model": {"ground_truth": "34", …}}
    """
    prompt = required_text(fields, ("prompt",), field="problem", role="user")
    stripped = _DAPO_SUFFIX.sub("", _DAPO_PREFIX.sub("", prompt, count=1)).strip()
    reward_model = fields.get("reward_model")
    truth = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
    # The processed set has the answer in `solution`, the released one in `reward_model`.
    answer = {"solution": fields.get("solution") or truth}
    return to_problem({**fields, "prompt": stripped, **answer}, columns)


def mmlu(fields: Fields, columns: Mapping[str, str]) -> Problem:
    """Convert MMLU: the problem lists four options, the reference is a letter.

    CSV files of the release (github.com/hendrycks/test), named `<subject>_test.csv`, no header::

        Find the degree of …,0,4,2,6,B

    huggingface.co/datasets/cais/mmlu::

        {"question": "Find …", "subject": "abstract_algebra", "choices": ["0", "4", "2", "6"],
         "answer": 1}
    """
    question = required_text(fields, ("question",), field="problem", role="user")
    # The Hub has one list; CSV rows have a column per letter (`CSV_NAMES`).
    options = fields.get("choices") or [fields.get(letter) for letter in LETTERS]
    if not isinstance(options, list) or len(options) != 4:
        raise RowFault("wrong_type", field="choices", detail="expected four options")
    # As columns named by letters, so that a fault names the option by its letter.
    named = dict(zip(LETTERS, options, strict=True))
    lines = [f"{each}. {required_text(named, (each,), field=each)}" for each in LETTERS]
    answer = str(fields.get("answer")).strip()
    # The Hub counts options from 0; CSV files have the letter.
    letter = dict(zip("0123", LETTERS, strict=True)).get(answer, answer)
    if letter not in LETTERS:
        detail = f"expected A, B, C, D or 0 to 3, found {fields.get('answer')!r}"
        raise RowFault("wrong_type", field="answer", detail=detail)
    # CSV rows have no subject: the file is called `<subject>_test.csv`.
    subject = fields.get("subject") or re.sub(r"_(test|dev|val)$", "", str(fields.get("file", "")))
    return Problem.create(
        problem="\n".join([question, *lines]),
        reference=letter,
        subject=text_of(subject, "subject"),
        tags=(MULTIPLE_CHOICE,),
    )


def olympiadbench(fields: Fields, columns: Mapping[str, str]) -> Problem:
    """Convert OlympiadBench, open-ended (huggingface.co/datasets/Hothan/OlympiadBench).

    ::

        {"question": "…", "solution": ["…"], "final_answer": ["$2$"], "unit": null,
         "is_multiple_answer": false, "answer_type": "Numerical", "subfield": "Algebra"}

    Several answers are joined by commas; the unit is not part of the answer.
    """
    answers, solutions = (fields.get(name) or [] for name in ("final_answer", "solution"))
    if not isinstance(answers, list) or not isinstance(solutions, list):
        raise RowFault("wrong_type", field="final_answer", detail="expected lists of texts")
    reference = ", ".join(text_of(answer, "final_answer") for answer in answers)
    # The first of several solutions: a record has one.
    named = {"answer": reference, "solution": next(iter(solutions), "")}
    return to_problem({**fields, **named}, {"reference": "answer", **columns})


def alpaca_eval(fields: Fields, columns: Mapping[str, str]) -> Problem:
    """Convert AlpacaEval's instructions, which have no right answer: a judge compares outputs.

    huggingface.co/datasets/tatsu-lab/alpaca_eval, `alpaca_eval.json`, a JSON array::

        [{"dataset": "helpful_base", "instruction": "What are …?", "output": "…",
          "generator": "text_davinci_003"}]
    """
    return Problem.create(
        problem=required_text(fields, ("instruction",), field="problem"),
        reference="",
        subject=text_of(fields.get("dataset") or "", "dataset"),
        tags=(INSTRUCTION,),
    )


def own_adapter(name: str) -> Adapter:
    """Load the plugin `name` as an adapter: its function gives a row the column table's names.

    Raises:
        UserError: it is no function. If the function raises or returns no mapping for a row, that
            row is dropped, named and counted like every row without a problem.
    """
    own = load_plugin(name)
    if not callable(own):
        raise UserError(f"{name}: expected a function from a row to a mapping, got {own!r}")

    def convert(fields: Fields, columns: Mapping[str, str]) -> Problem:
        try:
            with guarded(name, inputs=f"the row {str(fields)[:80]}"):
                # A copy, since the plugin may change its argument.
                renamed = own(dict(fields))
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

CSV_NAMES = {"mmlu": ("question", *LETTERS, "answer")}
"""Columns of CSV files without a header, by adapter."""
