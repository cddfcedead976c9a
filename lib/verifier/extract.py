"""What a completion answers.

With a prompt format that has marks, the answer between them is the answer, and nothing between
them is none. Where the marks are missing, everything else is a fallback, in this order, from the
most deliberate mark to the least:

1. `\\boxed{…}` after the reasoning: the last one, or the last run of boxes joined by "and", "or"
   or commas, because a solution set may be boxed one by one;
2. answer tags of any known format, the last complete pair;
3. `####`, to the end of its line;
4. "the answer is …", "Final Answer: …", the last one;
5. a box inside the reasoning, for completions that never got out of it;
6. the text itself, where it is a bare expression without prose;
7. what follows the last "is", "are" or "=", where no word does;
8. the last formula or number of the text, whichever ends later.
"""

import collections
import re
from collections.abc import Iterator

from lib.prompts.base import PromptFormat
from lib.verifier.limits import MAX_COMPLETION_CHARS
from lib.verifier.prose import has_prose, has_words

_TEMPLATE = re.compile(r"<\|(?:im_end|im_start\|>(?:user|system)|endoftext|eot_id|end_of_text)\b")
_REASONING_ENDS = ("</think>", "</reasoning>", "<end_working_out>")
_ANSWER_TAGS = (("<answer>", "</answer>"), ("<SOLUTION>", "</SOLUTION>"))
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=[{\\\w])|\\beginboxed\s*(?=\{)")
_JOINT = re.compile(
    r"(?:[\s.,;$]|\\[,;:! ]|\\q?quad|\\\(|\\\)|\\\[|\\\]|\\text\{|\\mbox\{|\}|\band\b|\bor\b|\\cup"
    r"|\\(?:text|mathrm)\s*\{\s*(?:and|or)\s*\}|(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?)\s*(?:=|\\in\b))*"
)
_CUE = re.compile(
    r"(?:final\s+answer|\banswer|\brésponse|\bréponse|\brespuesta|\bAntwort|答案|答え)[*_]*\s*"
    r"(?:is\s*:?|are\s*:?|:|=|：|是|为|est\b|es\b|ist\b)[*_\s]*",
    re.IGNORECASE,
)
_FORMULA = re.compile(
    r"\$\$(.{1,2000}?)\$\$|(?<!\\)\$((?:[^$\\]|\\.){1,2000}?)\$|\\\((.{1,2000}?)\\\)"
    r"|\\\[(.{1,2000}?)\\\]",
    re.DOTALL,
)
_SENTENCE_END = re.compile(r"(?<!\b[a-z])\.(?=\s|$)|[!?。！？](?=\s|$)|\n|<")
_NUMBER_TEXT = re.compile(
    r"(?<![A-Za-z0-9_.\\])(?:[-+−]\s?)?(?:[$€£¥]\s?)?(?:\d{1,3}(?:(?:,|\s?\{\s?,\s?\}|,\\!\s?)\d{3})+(?!\d)|\d+)?"
    r"(?:[.,]\d+|(?<=\d))(?:[eE][-+]?\d{1,3})?"
    r"(?:\s?/\s?\d+(?:\.\d+)?|(?::\d+)+|\^\{?\d+\}?)?(?:\s?\\?%)?"
)

_TAIL = 4_000
_AMOUNT = re.compile(
    r"[$€£]\s?\d[\d,]*(?:\.\d+)?(?!\s?\d)|(?<![\d.,$€£])\d[\d,]*(?:\.\d+)?\s?(?:[€£]|\$(?=\s|$))"
)


def extract_answer(completion: str, *, prompt_format: PromptFormat | None = None) -> str | None:
    """The answer that `completion` gives, None where it gives none; order and why: see above.

    Never raises, and takes time linear in the text, whatever the text.
    """
    text = completion[-MAX_COMPLETION_CHARS:]
    if prompt_format is not None and prompt_format.marks:
        marked = prompt_format.parse(text).answer
        if marked is not None:
            return last_boxed(marked) or marked or None
    text = _without_template(text)
    for find in (
        _boxed_after_reasoning,
        _tagged,
        _hashed,
        _announced,
        last_boxed,
        _bare,
        _concluded,
        _last,
    ):
        answer = find(text)
        if answer:
            return answer
    return None


def last_boxed(text: str) -> str | None:
    """Contents of the last `\\boxed{…}`, joined with those that belong to it, None without one."""
    boxes = list(_boxes(text))
    if not boxes:
        return None
    kept = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        if not _JOINT.fullmatch(text, box[1], kept[0][0]):
            break
        kept.insert(0, box)
    contents = [_clean(content) for _, _, content in kept]
    return ", ".join(content for content in contents if content) or None


def _boxes(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and content of each outermost box, braces balanced; the last may lack its end."""
    position = 0
    while found := _BOX.search(text, position):
        start = found.end()
        if text[start] != "{":
            bare = re.compile(r"\\?\w+").match(text, start)
            end = bare.end() if bare else start + 1
            yield found.start(), end, text[start:end]
        else:
            closing = _closing_brace(text, start)
            end = len(text) if closing is None else closing + 1
            yield found.start(), end, text[start + 1 : closing]
        position = end


_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def _closing_brace(text: str, start: int) -> int | None:
    """Where the group that opens at `start` is closed, None where it is not."""
    depth = 0
    for found in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.start()
    return None


def _boxed_after_reasoning(text: str) -> str | None:
    end = max(text.rfind(mark) for mark in _REASONING_ENDS)
    return last_boxed(text[end + 1 :])


def _tagged(text: str) -> str | None:
    for opening, closing in _ANSWER_TAGS:
        before, closed, _ = text.rpartition(closing)
        _, opened, answer = before.rpartition(opening)
        if closed and opened and answer.strip():
            return answer.strip()
    return None


def _hashed(text: str) -> str | None:
    _, hashes, after = text.rpartition("####")
    lines = after.strip().splitlines()
    return _clean(lines[0]) if hashes and lines else None


def _announced(text: str) -> str | None:
    cues = list(_CUE.finditer(text))
    for cue in reversed(cues[-8:]):
        answer = _statement(text[cue.end() : cue.end() + 2000])
        if answer:
            return answer
    return None


def _statement(text: str) -> str | None:
    """The answer in the sentence that `text` begins with."""
    sentence = _first_sentence(text.lstrip())
    if not sentence:
        return None
    alone = _FORMULA.fullmatch(_clean(sentence))
    if alone or not has_prose(_clean(sentence)):
        return _clean(next(filter(None, alone.groups())) if alone else sentence)
    formulas = [next(filter(None, found.groups())) for found in _FORMULA.finditer(sentence)]
    if sentence.lstrip("\"'*(").startswith(("$", "\\(", "\\[")) and formulas:
        return ", ".join(_clean(formula) for formula in formulas)
    amounts = _AMOUNT.findall(sentence)
    return amounts[0] if len(amounts) == 1 else _last(sentence)


def _first_sentence(text: str) -> str:
    """Up to the full stop or line end, which do not count inside a formula."""
    formulas = [found.span() for found in _FORMULA.finditer(text)]
    for found in _SENTENCE_END.finditer(text):
        if not any(start <= found.start() < end for start, end in formulas):
            return text[: found.start()]
    return text


def _bare(text: str) -> str | None:
    """The whole text, where it is short and has either no words or nothing else."""
    clean = _clean(text)
    if not clean or len(clean) > 400 or has_prose(clean):
        return None
    mixed = has_words(clean) and any(letter.isdigit() for letter in clean)
    return None if mixed else clean


_VERB = re.compile(r"\b(?:is|are|equals?|gives?)\b:?|[=是为]")


def _concluded(text: str) -> str | None:
    """What follows the last verb or equals sign: one expression, or one word where no number is."""
    verb = _final(_VERB, text[-_TAIL:])
    rest = _clean(text[-_TAIL:][verb.end() :]) if verb else ""
    if not rest or len(rest) > 200 or "$" in rest or "\\(" in rest or "\\[" in rest:
        return None
    wordless = not any(letter.isdigit() for letter in text) and len(rest.split()) <= 2
    return rest if wordless or not has_words(rest) else None


def _last(text: str) -> str | None:
    """The last formula or number, whichever ends later."""
    tail = text[-_TAIL:]
    formula, number = _final(_FORMULA, tail), _final(_NUMBER_TEXT, tail)
    if formula and (number is None or number.end() <= formula.end()):
        content = _clean(next(filter(None, formula.groups())))
        if not has_prose(content):
            return _with_its_like(tail[: formula.start()], content)
    return number[0].strip() if number else None


_MAX_JOINED = 20
_AND = re.compile(r"(?:,\s*)?\s(?:and|or)\s+$")


def _with_its_like(before: str, content: str) -> str:
    """The last formula with those that "and" or "or" join to it: `$x = 3$ and $x = 4$`."""
    contents = [content]
    while len(contents) < _MAX_JOINED and (joint := _AND.search(before, max(len(before) - 20, 0))):
        rest = before[: joint.start()]
        formula = _final(_FORMULA, rest)
        if formula is None or formula.end() < len(rest):
            break
        contents.insert(0, _clean(next(filter(None, formula.groups()))))
        before = rest[: formula.start()]
    return ", ".join(contents)


def _final(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match."""
    last = collections.deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None


def _clean(text: str) -> str:
    """Without the marks that surround an answer: quotes, bold, full stop, math delimiters."""
    return text.strip().strip("*\"'“”` \n").removesuffix(".").strip()


def _without_template(text: str) -> str:
    """Up to the first mark of a chat template that ends the turn."""
    found = _TEMPLATE.search(text)
    return text[: found.start()] if found and found.start() else text
