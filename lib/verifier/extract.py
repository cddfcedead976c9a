r"""Extract a completion's answer: marks come before announcements and conclusions.

If the prompt format has marks and the completion has them, the answer is the text between them; an
empty text is no answer. If the marks are missing, the rules of `_RULES` are tried in their order,
from the most deliberate mark to the least, until one finds an answer:

1. `\boxed{…}` after the reasoning: the last one, or the last run of boxes joined by "and", "or",
   commas (a solution set, boxed one by one) or "=" (one answer in two forms);
2. answer tags of any known format, the last complete pair;
3. `####`, to the end of its line;
4. a line that is marked and holds nothing but the answer: `# Answer`, `**Final answer:**`,
   `Answer - 24`, a last line `A: 24`; the answer may be on the line below, an explanation after it;
5. a sentence that announces: "the answer is …", or a marked line with prose, the last one;
6. a box inside the reasoning, for completions that never got out of it;
7. the whole text, where it is a bare expression;
8. what follows the last "is", "are" or "=" of the last line that has a number;
9. the last formula, expression or number of that line.

A box comes first because models copy `# Answer` and "the answer is" from prompts, but box only
their answer. The guesses (8, 9) use one line only: text over two lines would join two statements.
"""

import collections
import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from lib.verifier.tree import MAX_COMPLETION_CHARS
from lib.verifier.words import has_prose, has_words

_TEMPLATE = re.compile(r"<\|(?:im_end|im_start\|>(?:user|system)|endoftext|eot_id|end_of_text)\b")
_ANNOTATION = re.compile(r"<<[^<>\n]{0,200}>>")
_REASONING_ENDS = ("</think>", "</reasoning>", "<end_working_out>")
_ANSWER_TAGS = (
    ("<answer>", "</answer>"),
    ("<SOLUTION>", "</SOLUTION>"),
    ("<|begin_of_box|>", "<|end_of_box|>"),
)
_BOX = re.compile(r"\\(?:boxed|fbox|beginboxed)\s*(?=\{)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_JOINT = re.compile(
    r"(?:[\s.,;$]|\\[,;:! ]|\\q?quad|\\\(|\\\)|\\\[|\\\]|\\text\{|\\mbox\{|\}|\band\b|\bor\b|\\cup"
    r"|\\(?:text|mathrm)\s*\{\s*(?:and|or)\s*\}|(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?)\s*(?:=|\\in\b))*"
)
_SAME = re.compile(r"[\s$]*(=|\\approx|≈)[\s$]*")
_FORMULA = re.compile(
    r"\$\$(.{1,2000}?)\$\$|(?<!\\)\$((?:[^$\\]|\\.){1,2000}?)\$|\\\((.{1,2000}?)\\\)"
    r"|\\\[(.{1,2000}?)\\\]",
    re.DOTALL,
)
_NOUN = r"(?:final\s+answer|answer|réponse|respuesta|Antwort|答案|答え)"
_CUE = re.compile(
    rf"(?:^[ \t>]*(?:\#+[ \t]*|[-*][ \t]+)?[*_]*(?:the\s)?{_NOUN}[*_ \t]*(?:[-–—]\s|\n)"
    rf"|^[*_]*A[*_]*[:：](?=[^\n]*\s*\Z)"
    rf"|(?<![^\W_]){_NOUN}[*_]*\s*(?:is\s*:?|are\s*:?|:|=|：|是|为|est\b|es\b|ist\b))[*_\s]*",
    re.IGNORECASE | re.MULTILINE,
)
_LINE_START = re.compile(r"[ \t>#*_-]*(?:the\s)?\Z", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<!\b[a-z])\.(?=\s|$)|[!?。！？](?=\s|$)|\n|<")
_NUMBER_TEXT = re.compile(
    r"(?<![A-Za-z0-9_.\\])(?:[-+−]\s?)?(?:[$€£¥]\s?)?(?:\d{1,3}(?:(?:,|\s?\{\s?,\s?\}|,\\!\s?)\d{3})+(?!\d)|\d+)?"
    r"(?:[.,]\d+|(?<=\d))(?:[eE][-+]?\d{1,3})?"
    r"(?:\s?/\s?\d+(?:\.\d+)?|(?::\d+)+|\^\{?\d+\}?)?(?:\s?\\?%)?"
)
_AMOUNT = re.compile(
    r"[$€£]\s?\d[\d,]*(?:\.\d+)?(?!\s?\d)|(?<![\d.,$€£])\d[\d,]*(?:\.\d+)?\s?(?:[€£]|\$(?=\s|$))"
)
_VERB = re.compile(r"\b(?:is|are|be|equals?|gives?)\b:?|[=是为]")
_VALUE = re.compile(rf"(?:{_NUMBER_TEXT.pattern})(?=\s+[a-z]{{2}})")
_UNCOMMITTED = re.compile(
    r"\b(?:(?:either|or|maybe|perhaps|possibly|one of|between|lies|at (?:least|most)"
    r"|(?:more|less|fewer|greater|smaller|larger) than) "
    r"|(?:could|might|may|can ?not) be (?=[-$\\\d])|not (?=\S+$))",
    re.IGNORECASE,
)
"""Words that name several answers or a bound: the number beside them is not the answer."""
_AND = re.compile(r"(?:,\s*)?\s(?:and|or)\s+$")
_TAIL = 4_000
_MAX_BOXES = 3
"""Boxes around an answer, one inside another, that are removed."""


def as_text(content: object) -> str:
    """Return the text of a message's content or of a reference, whatever its type.

    Chat servers also send a list of parts: their texts are joined. The text of None is empty.
    """
    if isinstance(content, list | tuple):
        parts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "".join(map(as_text, parts))
    return "" if content is None else str(content)


class Parsed(Protocol):
    """A completion that a prompt format has parsed."""

    @property
    def answer(self) -> str | None:
        """The text between the marks of the answer, or None if the marks are missing."""


class AnswerMarks(Protocol):
    """The part of a prompt format that extraction needs."""

    @property
    def marks(self) -> Sequence[str]:
        """The marks of the format; empty if it has none."""

    def parse(self, completion: str) -> Parsed:
        """Parse a completion."""


def extract_answer(completion: str, *, prompt_format: AnswerMarks | None = None) -> str | None:
    """Return the answer that `completion` gives, or None if it gives none.

    The order of the rules is at the top of this module. No text makes this function raise, and its
    time is linear in the length of the text.
    """
    text = completion[-MAX_COMPLETION_CHARS:]
    if prompt_format is not None and prompt_format.marks:
        marked = prompt_format.parse(text).answer
        if marked is not None:
            return last_boxed(marked) or marked or None
    return next(applied_rules(text), ("", None))[1]


def applied_rules(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each rule that finds an answer in `text`, with that answer, in order."""
    # A model without an end token writes the next turn too: the text ends before it.
    match = _TEMPLATE.search(text)
    text = text[: match.start()] if match and match.start() else text
    # GSM8K's calculations, `<<3*4=12>>`, are no part of an answer.
    text = _ANNOTATION.sub("", text) if "<<" in text else text
    for rule in _RULES:
        answer = rule(text)
        if answer:
            yield rule.__name__.strip("_"), answer


def last_boxed(text: str) -> str | None:
    r"""Return the contents of the last `\boxed{…}`, or None.

    Boxes before it belong to the answer if only "and", "or", commas or "=" are between them.
    """
    boxes = list(_boxes(text))
    if not boxes:
        return None
    # From the last box backwards, until other text is between two boxes.
    start, _, content = boxes.pop()
    joined = _clean(content)
    for before, end, content in reversed(boxes):
        if same := _SAME.fullmatch(text, end, start):
            joined = f"{_clean(content)} {same[1]} {joined}"
        elif _JOINT.fullmatch(text, end, start):
            # A repeated box is no second answer.
            if _clean(content) != joined:
                joined = ", ".join(filter(None, (_clean(content), joined)))
        else:
            break
        start = before
    return joined or None


def unwrapped(answer: str) -> str:
    """Remove the boxes or tags around `answer`."""
    for _ in range(_MAX_BOXES):
        if "boxed" not in answer and "\\fbox" not in answer:
            return _tagged(answer) or answer
        answer = last_boxed(answer) or ""
    return answer


def _boxes(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and content of each box that is not inside another.

    The last box may lack its closing brace: then it ends with the text.
    """
    position = 0
    while match := _BOX.search(text, position):
        start = match.end()
        closing = _closing_brace(text, start)
        end = len(text) if closing is None else closing + 1
        yield match.start(), end, text[start + 1 : closing]
        position = end


def _closing_brace(text: str, start: int) -> int | None:
    """Return the place of the brace that closes the group opened at `start`, or None."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return None


def _boxed(text: str) -> str | None:
    """Return the last box after the reasoning, of the whole text if it marks no reasoning."""
    # `rfind` returns -1 if there is no mark: text[0:] is the whole text.
    end = max(text.rfind(mark) for mark in _REASONING_ENDS)
    return last_boxed(text[end + 1 :])


def _tagged(text: str) -> str | None:
    """Return the text in the last complete pair of answer tags, or None."""
    for opening, closing in _ANSWER_TAGS:
        before, closed, _ = text.rpartition(closing)
        _, opened, answer = before.rpartition(opening)
        if closed and opened and answer.strip():
            return answer.strip()
    return None


def _hashed(text: str) -> str | None:
    """Return the line after the last `####`, or None."""
    _, hashes, after = text.rpartition("####")
    lines = after.strip().splitlines()
    return _clean(lines[0]) if hashes and lines else None


def _cues(text: str) -> list[re.Match[str]]:
    """Return the matches of the last eight marks and announcements, the last one first."""
    return list(collections.deque(_CUE.finditer(text), maxlen=8))[::-1]


def _marked(text: str) -> str | None:
    """Return the last answer without prose that follows a mark, on its line or the line below."""
    for cue in _cues(text):
        line = text[text.rfind("\n", 0, cue.start()) + 1 : cue.start()]
        if _LINE_START.fullmatch(line):
            rest = text[cue.end() : cue.end() + 2000].lstrip()
            # A formula may be longer than a line.
            formula = _FORMULA.match(rest)
            end = rest.find("\n", formula.end() if formula else 0)
            answer = _clean(rest[: end if end >= 0 else None])
            if answer and not has_prose(answer) and len(answer) <= 400:
                return answer
    return None


def _announced(text: str) -> str | None:
    """Return the answer of the last announcement with one, such as "the answer is …", or None."""
    statements = (_statement(text[cue.end() : cue.end() + 2000]) for cue in _cues(text))
    return next(filter(None, statements), None)


def _statement(text: str) -> str | None:
    """Return the answer in the first sentence of `text`.

    This is the whole sentence if it has no prose, or words such as "at least"; else the one amount
    of money in it, or its last formula or number.
    """
    sentence = _SENTENCE_END.split(text.lstrip(), maxsplit=1)[0]
    clean = _clean(sentence)
    if not clean or _UNCOMMITTED.search(clean):
        return clean or None
    alone = _FORMULA.fullmatch(clean)
    if alone or not has_prose(clean):
        return _content(alone) if alone else clean
    amounts = _AMOUNT.findall(sentence)
    return amounts[0] if len(amounts) == 1 else _last(sentence)


def _bare(text: str) -> str | None:
    """Return the whole text if it is a bare expression or a few words; else None.

    Words beside a digit, prose, and more than 400 characters are not bare.
    """
    clean = _clean(text)
    if not clean or len(clean) > 400:
        return None
    mixed = has_words(clean) and any(letter.isdigit() for letter in clean)
    return None if mixed or has_prose(clean) else clean


def _concluding_line(text: str) -> str:
    """Return the last line that has a number or a formula, or else the last line."""
    lines = [line for line in text[-_TAIL:].splitlines() if line.strip()]
    telling = (line for line in reversed(lines) if re.search(r"\d|\$|\\[(\[a-zA-Z]", line))
    return next(telling, lines[-1] if lines else "")


def _concluded(text: str) -> str | None:
    """Return the text after the last "is", "are" or "=" of the last line with a number.

    None unless it is an expression, or one or two words of a text without any digit.
    """
    line = _concluding_line(text)
    verb = _final(_VERB, line)
    rest = _clean(line[verb.end() :]) if verb else ""
    # `= 24 apples`
    value = _VALUE.match(rest) if verb and verb[0] == "=" else None
    if value and has_words(rest):
        return value[0].strip()
    if not rest or len(rest) > 200 or "$" in rest or "\\(" in rest or "\\]" in rest:
        return None
    wordless = not any(letter.isdigit() for letter in text) and len(rest.split()) <= 2
    return rest if wordless or not has_words(rest) else None


def _last(text: str) -> str | None:
    """Return the last formula or number, the one that ends later; None if there is neither."""
    tail = text[-_TAIL:]
    formula, number = _final(_FORMULA, tail), _final(_NUMBER_TEXT, tail)
    if formula and (number is None or number.end() <= formula.end()):
        content = _content(formula)
        if not has_prose(content):
            # `$2$ and $3$` is one answer of two formulas.
            return content if not _AND.search(tail[: formula.start()]) else _clean(text)
    return _word(tail, number) if number else None


def _word(text: str, number: re.Match[str]) -> str:
    r"""Return the number, or the expression between spaces that it is in: `3\sqrt{13}`.

    The end of a pair, `-2)`, is returned as it is: it equals no answer, as it should.
    """
    if not {*text[: number.start()][-1:], *text[number.end() :][:1]} & _SIGNS:
        return number[0].strip()
    start = text.rfind(" ", 0, number.start()) + 1
    return _clean(text[start:].split()[0])


_SIGNS = {*"\\(){}[]^=+/"}


def _final(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match of `pattern`, or None."""
    last = collections.deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None


def _content(formula: re.Match[str]) -> str:
    """Return the text between a formula's delimiters."""
    return _clean(next(filter(None, formula.groups())))


def _clean(text: str) -> str:
    """Remove spaces, quotes, bold and a full stop around an answer."""
    return text.strip().strip("*\"'“”` \n").removesuffix(".").strip()


def _guessed(text: str) -> str | None:
    """Return the last formula or number of the last line with one.

    If the line names several answers or a bound, return the line, which equals no answer.
    """
    line = _concluding_line(text)
    return _clean(line) if _UNCOMMITTED.search(line) else _last(line)


_RULES = (
    _boxed,
    _tagged,
    _hashed,
    _marked,
    _announced,
    last_boxed,
    _bare,
    _concluded,
    _guessed,
)

_LETTER_AFTER_CUE = re.compile(
    r"(?:answer|choice|option)\s*(?:is|are|:|=)?\s*:?\s*"
    r"(?:\$?\\boxed\{)?(?:\\text(?:bf)?\{)?[(\[*\"'$]*([A-D])(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_BOXED_LETTER = re.compile(r"\\boxed\{\s*(?:\\text(?:bf|rm)?\{)?\s*\(?([A-D])\)?\s*\}")
_BARE_LETTER = re.compile(r"[\s(\[*\"'$]*([A-D])[\s)\].:*\"'$]*")
_LEADING_LETTER = re.compile(r"[\s(\[*]*([A-D])[)\].:*]")
_PLAIN_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])[-+]?\.\d+"
)


def parse_mmlu_letter(text: str) -> str | None:
    """Return the option that `text` chooses, "A" to "D", or None if it chooses none.

    Tried in this order: the last box with a letter; the last letter after "answer", "choice" or
    "option" ("The correct answer is B."); a text of one letter; a letter at the beginning
    ("B) because …"). A letter inside a sentence is no choice: "A" is also an article.
    """
    for pattern in (_BOXED_LETTER, _LETTER_AFTER_CUE):
        # The pattern ignores case, also that of the letter.
        letters = [letter for letter in pattern.findall(text) if letter.isupper()]
        if letters:
            return str(letters[-1])
    alone = _BARE_LETTER.fullmatch(text) or _LEADING_LETTER.match(text)
    return alone[1] if alone else None


def parse_gsm8k_number(text: str) -> str | None:
    """Return the last number in `text` without thousands separators ("72", "-1234.5"), or None.

    A digit inside a word ("R2D2") is no number, and a full stop after one is no decimal point.
    """
    last = _final(_PLAIN_NUMBER, text)
    return last[0].replace(",", "").lstrip("+") if last else None
