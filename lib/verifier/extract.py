r"""Extract the final answer from a completion, as text: `… so \boxed{\frac12}.` -> `\frac12`.

If the prompt format has marks and the completion has them, the answer is the text between them; an
empty text is no answer. If the marks are missing, the rules of `_RULES` are tried in this order,
from the most explicit mark to a guess, until one finds an answer:

1. `\boxed{…}` after the reasoning: the last one, or the last run of boxes joined by "and", "or",
   commas (a solution set, boxed one by one) or "=" (one answer in two forms);
2. answer tags of any known format, the last complete pair;
3. `####`, to the end of its line;
4. a line that is marked and holds nothing but the answer: `# Answer`, `**Final answer:**`,
   `Answer - 24`, a last line `A: 24`; the answer may be on the line below, an explanation after it;
5. a sentence that announces: "the answer is …", or a marked line with prose, the last one;
6. a box inside the reasoning, for completions that never got out of it;
7. the whole text, where it is a bare expression;
8. the text after the last "is", "are" or "=" of the last line with a number;
9. the last formula, expression or number of that line.

A box comes first because models copy `# Answer` and "the answer is" from prompts, but box only
their answer. The guesses (8, 9) use one line only: text over two lines would join two statements.
"""

import collections
import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from lib.verifier.tree import MAX_COMPLETION_CHARS, names
from lib.verifier.words import HEDGES, SCALES, has_prose, has_words

# Tokens of chat templates that end the model's turn: `<|im_end|>`, `<|im_start|>user`.
_TEMPLATE = re.compile(r"<\|(?:im_end|im_start\|>(?:user|system)|endoftext|eot_id|end_of_text)\b")
# GSM8K's calculator annotations: `<<3*4=12>>`.
_ANNOTATION = re.compile(r"<<[^<>\n]{0,200}>>")
_REASONING_ENDS = ("</think>", "</reasoning>", "<end_working_out>")
_ANSWER_TAGS = (
    ("<answer>", "</answer>"),
    ("<SOLUTION>", "</SOLUTION>"),
    ("<|begin_of_box|>", "<|end_of_box|>"),
)
_BOX = re.compile(r"\\(?:boxed|fbox|beginboxed)\s*(?=\{)")
# A brace, or an escaped character such as `\{`, so that an escaped brace is not counted.
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# Any text that may join two boxes of one answer: `\boxed{1} \text{ and } x_2 = \boxed{2}`.
_JOINT = re.compile(
    # Spaces, punctuation and math delimiters.
    r"(?:[\s.,;$]|\\[,;:! ]|\\q?quad|\\\(|\\\)|\\\[|\\\]"
    # Conjunctions, also inside `\text{…}`.
    r"|\\text\{|\\mbox\{|\}|\b(?:and|or)\b|\\(?:text|mathrm)\s*\{\s*(?:and|or)\s*\}"
    # The name of the next value: `x_2 =`, `\theta \in`.
    r"|(?P<name>\\?[A-Za-z]+(?:_\{?\w+\}?)?)\s*(?:=|\\in\b))*"
)
_CONJUNCTION = re.compile(r"\b(?:and|or)\b")
# The name of the first value: `x_1 =`.
_FIRST_NAME = re.compile(r"(?<![\w\\])\\?[A-Za-z]+(?:_\{?\w+\}?)?\s*(?:=|\\in)[\s$]*\Z")
# What may be around the box or the tags of a whole answer.
_LEAD, _TRAIL = re.compile(r"(?:[\s$]|\\[(\[])*"), re.compile(r"(?:[\s$.]|\\[)\]])*")
# The end of a text before a box that changes what the box says, after a sign, a factor, the command
# or the brace of an argument, or a denial: `= -`, `2`, `x <`, `\sqrt`, `\frac{1}{`, `not`.
_BEFORE = re.compile(
    r"(?:[-+−±∓|√]\$?|[-+−±∓=<>(\d)}]\s*[-+−±∓][\s$]*|(?:[\^_/·×÷≠≤≥≈]|<|(?<!\w{3})(?<![-=|])>"
    r"|(?<!\*)\*)[\s$]*|\d ?|(?<![A-Za-z])[A-Za-z]|(?:[-+−*/^\d)}]\s*|[A-Za-z])(?:\\left\s*)?\("
    r"|\\(?!q?quad|displaystyle|(?:[lL]ong)?[rR]ightarrow|Longrightarrow|implies|therefore|to\b"
    r"|text|[lL]arge|LARGE|[hH]uge|left|[bB]ig|item|boxed)[A-Za-z]+[\s$]*"
    r"|(?:[\^_}]|\\(?!text|math|bm|boldsymbol|mbox)[A-Za-z]+\s*(?:\[[^\]]{0,9}\]\s*)?)\s*\{[\s$]*"
    r"|\b(?:not|never|negative|minus|than|twice|half|half of|except|maybe|perhaps|possibly)"
    # `6, \boxed{5}`: a list of which only one element has a box.
    r" [\s$}]*|\A[-\d.,\s$]*\d,[\s$]*)\Z"
)
# The beginning of a text after a box that changes it: `^2`, `\%`, `!`, `x`, `+ 1`, `million`.
_AFTER = re.compile(
    r"[!A-Za-z\d]|[ \t})]*\^|[ \t]*\$?\\?%|[ \t]*(?:[_/>≠≤≥≈±√·×÷]|<(?![/|]|[a-z]{2})|\*(?!\*)"
    r"|[-+−]\s*(?:\d|\\[a-z]|\(|[A-Za-z](?![A-Za-z]))"
    r"|\\(?!q?quad|text|mbox|math|blacksquare|square|checkmark|Box|qed|right|end|hfill|newline|par"
    r"|[bB]ig|implies|(?:[lL]ong)?[rR]ightarrow|Longrightarrow)(?:%|[a-zA-Z]+)"
    rf"|(?:\\(?:text|mbox|mathrm)\s*\{{\s*)?(?:percent|{'|'.join(SCALES)})s?\b)"
)
_COLOUR = re.compile(r"\\(?:text)?color\s*\{[a-zA-Z]+\}")
_BULLET = re.compile(r"\s*[-+*>]\s+")
# The sign between two boxes with the same answer: `\boxed{1/2} = \boxed{0.5}`.
_SAME = re.compile(r"[\s$]*(=|\\approx|≈)[\s$]*")
# `$$x$$`, `$x$`, `\(x\)` or `\[x\]`; one of the four groups is the content.
_FORMULA = re.compile(
    r"\$\$(.{1,2000}?)\$\$|(?<!\\)\$((?:[^$\\]|\\.){1,2000}?)\$|\\\((.{1,2000}?)\\\)"
    r"|\\\[(.{1,2000}?)\\\]",
    re.DOTALL,
)
_NOUN = r"(?:final\s+answer|answer|réponse|respuesta|Antwort|答案|答え)"
# A cue: the text directly before an answer.
_CUE = re.compile(
    # A line `## Answer` before the line of the answer, or `Answer - `.
    rf"(?:^[ \t>]*(?:\#+[ \t]*|[-*][ \t]+)?[*_]*(?:the\s)?{_NOUN}[*_ \t]*(?:[-–—]\s|\n)"
    # `**A:** ` at the beginning of the last line.
    rf"|^[*_]*A[*_]*[:：](?=[^\n]*\s*\Z)"
    # `answer is `, `Final answer: `, `答案是`.
    rf"|(?<![^\W_]){_NOUN}[*_]*\s*(?:is\s*:?|are\s*:?|:|=|：|是|为|est\b|es\b|ist\b))[*_\s]*",
    re.IGNORECASE | re.MULTILINE,
)
# The text of a line before a cue that begins the line: `> ## The `.
_LINE_START = re.compile(r"[ \t>#*_-]*(?:the\s)?\Z", re.IGNORECASE)
# Not the point of `3.5`, nor a full stop after a single letter (`at x = a. Then`).
_SENTENCE_END = re.compile(r"(?<!\b[a-z])\.(?=\s|$)|[!?。！？](?=\s|$)|\n|<")
_FULL_STOP = re.compile(r"[.!?](?=\s)|[。！？\n]")
# A number as a model writes it: `-$1,234.50`, `1{,}234`, `.5`, `1e-3`, `3/4`, `3:45`, `2^{10}`,
# `50\%`; not the digit of `x2`.
_NUMBER_TEXT = re.compile(
    # Sign, currency, integer part.
    r"(?<![A-Za-z0-9_.\\])(?:[-+−]\s?)?(?:[$€£¥]\s?)?(?:\d{1,3}(?:(?:,|\s?\{\s?,\s?\}|,\\!\s?)\d{3})+(?!\d)|\d+)?"
    # Decimals and power of ten; `(?<=\d)` matches after an integer without decimals.
    r"(?:[.,]\d+|(?<=\d))(?:[eE][-+]?\d{1,3})?"
    # The rest of a fraction, a ratio or a power; a percent sign.
    r"(?:\s?/\s?\d+(?:\.\d+)?|(?::\d+)+|\^\{?\d+\}?)?(?:\s?\\?%)?"
)
# An amount of money: `$5`, `€1,200.50`, `30$`, `5 €`.
_AMOUNT = re.compile(
    r"[$€£]\s?\d[\d,]*(?:\.\d+)?(?!\s?\d)|(?<![\d.,$€£])\d[\d,]*(?:\.\d+)?\s?(?:[€£]|\$(?=\s|$))"
)
_VERB = re.compile(r"\b(?:is|are|be|equals?|gives?)\b:?|(?<![<>!])[=是为]")
# The left side of an equation, up to its "=": numbers, letters and operators.
_LEFT = re.compile(r"(?:[-+*/^×·()\d.\s]|(?<![A-Za-z])[A-Za-z](?![A-Za-z]))*\Z")
# `2x`, `x + 1`: a value of it is none of x.
_COMPOSED = re.compile(r"\d\s*[A-Za-z]|[-+*/^×·]\s*\d*[A-Za-z]|[A-Za-z]\s*[-+*/^×·]")
# What makes a number beside it another one: the end of the text before it, a relation or another
# number (`2` of `2 1/2`, `2 hours and` 30, `5 ×` 10^3), and the beginning of the text after it.
_BOUND = re.compile(
    # Not the end of a tag or an arrow.
    r"(?:[<≤≥≠≈±~]|(?<!\w{3})(?<![-=|])>|[<>!]=|\\(?:nem?q?|[lg]eq?|[lg]t|approx|pm)\b"
    r"|\d\s?(?:(?<=\s)[a-z]+\s)?(?:(?:and|or|to|in|out of|of|times|x|[-+–−×*·])\s?)?)[\s$]*\Z"
)
_PART = re.compile(
    r"\s*[¼½¾⅐-⅞]|\s(?:and\s)?(?:an?|one|two|three)?\s?(?:half|quarters?|thirds?|fifths?)\b"
)
_QUALIFIERS = HEDGES - names(
    "is are was were and or if when while all any each every both only other others another before "
    "after previous next some many few odd even true unknown guess"
)
"""Words beside a number or before "the answer" that change it: `negative`, `million`, `about`."""
# A number before a word: the 24 of `24 apples`.
_VALUE = re.compile(rf"(?:{_NUMBER_TEXT.pattern})(?=\s+[a-z]{{2}})")
_UNCOMMITTED = re.compile(
    r"\b(?:(?:either|or|maybe|perhaps|possibly|one of|between|lies|at (?:least|most)"
    r"|(?:more|less|fewer|greater|smaller|larger) than) "
    r"|(?:could|might|may|can ?not) be (?=[-$\\\d])|not (?=\S+$))",
    re.IGNORECASE,
)
"""Words that name several answers or a bound: the number beside them is not the answer."""
# The end of the text before a last formula: the ` and ` of `$2$ and $3$`.
_AND = re.compile(r"(?:,\s*)?\s(?:and|or)\s+$|(?<=\$),\s+$")
_TAIL = 4_000
"""Number of characters at the end of a text that the guesses (rules 8 and 9) read."""
_MAX_BOXES = 3
"""Nested boxes around an answer that are removed: `\\boxed{\\boxed{5}}` has two."""


def as_text(content: object) -> str:
    """Return the text of a message's content or of a reference, whatever its type.

    Chat servers also send a list of parts: their texts are joined. The text of None is empty.
    """
    if isinstance(content, list | tuple):
        parts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "".join(map(as_text, parts))
    return "" if content is None else str(content)


class Parsed(Protocol):
    """The result of `AnswerMarks.parse`: a completion, split at the marks of its prompt format."""

    @property
    def answer(self) -> str | None:
        """The text between the marks of the answer, or None if the marks are missing."""


class AnswerMarks(Protocol):
    """The interface of a prompt format that extraction needs (`lib.prompts` implements it)."""

    @property
    def marks(self) -> Sequence[str]:
        """The marks of the format, such as `<SOLUTION>`; empty if it has none."""

    def parse(self, completion: str) -> Parsed:
        """Find the answer between the marks."""


def extract_answer(completion: str, *, prompt_format: AnswerMarks | None = None) -> str | None:
    r"""Return the final answer of `completion` as text, or None if it has none.

    `"… so \boxed{72}."` gives "72", and so does `"The answer is 72."`. The order of the rules is at
    the top of this module. No text makes this function raise, and its time is linear in the length
    of the text.
    """
    # Only the end of a very long completion is read, since the answer is there.
    text = completion[-MAX_COMPLETION_CHARS:]
    if prompt_format is not None and prompt_format.marks:
        marked = prompt_format.parse(text).answer
        if marked is not None:
            # An empty text between the marks is no answer: the rules are not tried.
            return unwrapped(marked) or None
    return next(applied_rules(text), ("", None))[1]


def applied_rules(text: str) -> Iterator[tuple[str, str]]:
    """Yield a pair (name of the rule, its answer) for each rule with an answer, in order.

    `extract_answer` uses the first pair. "x = 5" yields ("bare", "x = 5"), ("concluded", "5") and
    ("guessed", "5").
    """
    # A model without an end token writes the next turn too: the text ends before it. A text that
    # starts with such a token is kept whole: the cut would leave nothing.
    match = _TEMPLATE.search(text)
    text = text[: match.start()] if match and match.start() else text
    # GSM8K's calculations, `<<3*4=12>>`, are no part of an answer.
    text = _ANNOTATION.sub("", text) if "<<" in text else text
    for rule in _RULES:
        answer = rule(text)
        if answer:
            yield rule.__name__.strip("_"), answer


def last_boxed(text: str) -> str | None:
    r"""Return the contents of the last `\boxed{…}`, or None if there is no box or it is empty.

    Boxes before it belong to the answer if only "and", "or", commas, "=" or names are between them:
    `\boxed{1} or \boxed{2}` -> `1 or 2`; `\boxed{1} so \boxed{2}` -> `2`. If a sign, a factor or a
    denial touches them, the answer is the formula or the sentence around them: `-\boxed{5}`.
    """
    boxes = list(_boxes(text))
    if not boxes:
        return None
    # From the last box backwards, until other text is between two boxes.
    start, last, content = boxes.pop()
    joined, is_named = _clean(content), False
    for before, end, content in reversed(boxes):
        if same := _SAME.fullmatch(text, end, start):
            joined = f"{_clean(content)} {same[1]} {joined}"
        elif joint := _JOINT.fullmatch(text, end, start):
            is_named |= bool(joint["name"])
            word = _CONJUNCTION.search(text, end, start)
            # A repeated box is no second answer.
            if _clean(content) != joined:
                sign = f" {word[0]} " if word else ", "
                joined = sign.join(filter(None, (_clean(content), joined)))
        else:
            break
        start = before
    line = text.rfind("\n", 0, start) + 1
    lead = _COLOUR.sub("", _BULLET.sub("", text[max(line, start - 200) : start], count=1))
    touching = _BEFORE.search(lead), _AFTER.match(text, last, last + 40)
    if any(touching):
        # The formula with what touches the box: `not $\boxed{5}$` is a sentence.
        first = start - (len(lead) - touching[0].start() if touching[0] else 0)
        return _formula_around(text, first, touching[1].end() if touching[1] else last)
    if is_named:
        # `x = \boxed{1}, y = \boxed{2}`: the names say which value is which.
        name = _FIRST_NAME.search(lead)
        return (name[0] if name else "") + text[start:last]
    return joined or None


def _formula_around(text: str, start: int, end: int) -> str:
    """Return the formula around `text[start:end]`, or else its sentence."""
    line, stop = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    line, stop = max(line, start - _TAIL), min(len(text) if stop < 0 else stop, end + _TAIL)
    for formula in _FORMULA.finditer(text, line, stop):
        if formula.start() <= start and end <= formula.end():
            return _content(formula)
    line = max((each.end() for each in _FULL_STOP.finditer(text, line, start)), default=line)
    full_stop = _FULL_STOP.search(text, end, stop)
    stop = full_stop.end() if full_stop else stop
    return _clean(_BULLET.sub("", text[line:stop], count=1))


def reference_text(text: str) -> str:
    r"""Return a reference without its box: `\boxed{5}` -> `5`; of a solution, the last one's."""
    return (last_boxed(text) if has_prose(text) else None) or unwrapped(text)


def unwrapped(answer: str) -> str:
    r"""Remove boxes and tags around the whole of `answer`: `\boxed{\boxed{5}}` -> `5`.

    Of `-\boxed{5}` none is removed: the box is around a part only.
    """
    for _ in range(_MAX_BOXES):
        inside = _framed(answer)
        if inside is None:
            break
        answer = inside
    return answer


def _framed(answer: str) -> str | None:
    """Return the content of the box or the tags around the whole of `answer`, or None."""
    boxes = list(_boxes(answer)) if "box" in answer else []
    if len(boxes) == 1:
        start, end, content = boxes[0]
        is_whole = _LEAD.fullmatch(answer, 0, start) and _TRAIL.fullmatch(answer, end)
        return _clean(content) if is_whole else None
    bare = answer.strip()
    for opening, closing in _ANSWER_TAGS:
        inside = bare.removeprefix(opening).removesuffix(closing)
        if bare == f"{opening}{inside}{closing}" and closing not in inside:
            return inside.strip()
    return None


def _boxes(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, content) of each box outside any other; `text[start:end]` is the box.

    The last box may lack its closing brace: then it ends with the text.
    """
    position = 0
    while match := _BOX.search(text, position):
        start = match.end()
        closing = _closing_brace(text, start)
        end = len(text) if closing is None else closing + 1
        # `start` is the opening brace; text[start + 1 : None] goes on to the end of the text.
        yield match.start(), end, text[start + 1 : closing]
        position = end


def _closing_brace(text: str, start: int) -> int | None:
    """Return the index of the brace that closes the one at index `start`; None if it stays open."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        # An escaped character counts 0.
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return None


def _boxed(text: str) -> str | None:
    """Return the last box after the end of the reasoning; without such an end, in the whole text.

    The end is a tag such as `</think>`.
    """
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
    """Return the first line after the last `####`, GSM8K's mark, or None: `#### 24` -> `24`."""
    _, hashes, after = text.rpartition("####")
    lines = after.strip().splitlines()
    return _clean(lines[0]) if hashes and lines else None


def _cues(text: str) -> list[re.Match[str]]:
    """Return the last matches of `_CUE` (such as "The answer is"), the last match first.

    At most eight: a text full of cues would cost a search after each.
    """
    return list(collections.deque(_CUE.finditer(text), maxlen=8))[::-1]


def _marked(text: str) -> str | None:
    """Return the last answer without prose after a cue that begins a line, or None.

    `**Final answer:** 24` -> `24`. The answer may be on the line below the cue. A text of more than
    400 characters is no answer.
    """
    for cue in _cues(text):  # the last one first
        before_cue = text[text.rfind("\n", 0, cue.start()) + 1 : cue.start()]
        if _LINE_START.fullmatch(before_cue):
            rest = text[cue.end() : cue.end() + 2000].lstrip()
            # A formula may be longer than a line.
            formula = _FORMULA.match(rest)
            end = rest.find("\n", formula.end() if formula else 0)
            answer = _clean(rest[: end if end >= 0 else None])
            if answer and not has_prose(answer) and len(answer) <= 400:
                return answer
    return None


def _announced(text: str) -> str | None:
    """Return the answer after the last cue with an answer, anywhere in a line, or None.

    "So the answer is 5 apples. Done." -> "5 apples".
    """
    for cue in _cues(text):
        before = _FULL_STOP.split(text[max(cue.start() - 200, 0) : cue.start()])[-1]
        statement = _statement(text[cue.end() : cue.end() + 2000])
        if statement:
            # "Half the answer is 5" and "the wrong answer is 5" say what the answer is not.
            is_plain = not _QUALIFIERS & {*_spoken(before)[-3:]}
            return statement if is_plain else _clean(f"{before}{cue[0]}{statement}")
    return None


def _statement(text: str) -> str | None:
    """Return the answer in the first sentence of `text`, or None if it has none.

    This is the whole sentence if it has no prose, or if it has words such as "at least" (to take
    only the number would change the answer). Else it is the only amount of money ("$20 for 3 days"
    -> "$20"), or the last formula or number.
    """
    sentence = _SENTENCE_END.split(text.lstrip(), maxsplit=1)[0]
    clean = _clean(sentence)
    if not clean or _UNCOMMITTED.search(clean):
        return clean or None
    formula = _FORMULA.fullmatch(clean)
    if formula or not has_prose(clean):
        return _content(formula) if formula else clean
    amounts = [*_AMOUNT.finditer(sentence)]
    if len(amounts) != 1:
        return _last(sentence)
    return clean if _is_qualified(sentence, *amounts[0].span()) else amounts[0][0]


def _is_qualified(text: str, start: int, end: int) -> bool:
    """Return True if the words or the number beside `text[start:end]` change its meaning.

    True for the 5 of "negative 5", "5 million people" and "2 hours and 5 minutes".
    """
    before, after = _FULL_STOP.split(text[:start])[-1], _FULL_STOP.split(text[end:])[0]
    beside = {*_spoken(before)[-3:], *_spoken(after)[:2]}
    return bool(_QUALIFIERS & beside or _BOUND.search(before[-60:]) or _PART.match(after))


def _spoken(text: str) -> list[str]:
    """Return the words of a text in lower case; "not" for "isn't"."""
    return re.findall(r"[a-z]+", text[-200:].lower().replace("n't", " not"))


def _bare(text: str) -> str | None:
    """Return the whole text if it is a bare expression, `x = 5`, or a word, `no`; else None.

    None also if it has words beside a digit, is prose, or is longer than 400 characters.
    """
    clean = _clean(text)
    if not clean or len(clean) > 400:
        return None
    mixed = has_words(clean) and any(letter.isdigit() for letter in clean)
    return None if mixed or has_prose(clean) else clean


def _concluding_line(text: str) -> str:
    """Return the last line that has a number or a formula, or else the last line."""
    lines = [line for line in text[-_TAIL:].splitlines() if line.strip()]
    with_maths = (line for line in reversed(lines) if re.search(r"\d|\$|\\[(\[a-zA-Z]", line))
    return next(with_maths, lines[-1] if lines else "")


def _concluded(text: str) -> str | None:
    """Return the text after the last "is", "are" or "=" of the last line with a number.

    "So n = 24 apples" -> "24". None unless this text is an expression of at most 200 characters, or
    one or two words where the whole completion has no digit ("he is tall" -> "tall").
    """
    line = _concluding_line(text)
    verb = _final(_VERB, line)
    rest = _clean(line[verb.end() :]) if verb else ""
    # `= 24 apples`: the number only.
    value = _VALUE.match(rest) if verb and verb[0] == "=" else None
    left = _LEFT.search(line[max(verb.start() - 60, 0) : verb.start()]) if verb else None
    if verb and (
        "not" in _spoken(line[: verb.start()])[-2:]
        or (verb[0] == "=" and left and _COMPOSED.search(left[0]))
    ):
        # "x is not equal to 5", "2x = 5".
        return _clean(line)
    if value and has_words(rest):
        return _clean(line) if _is_qualified(rest, *value.span()) else value[0].strip()
    # A formula in delimiters is left to the next rule, `_guessed`.
    if not rest or len(rest) > 200 or "$" in rest or "\\(" in rest or "\\]" in rest:
        return None
    is_word_answer = not any(letter.isdigit() for letter in text) and len(rest.split()) <= 2
    return rest if is_word_answer or not has_words(rest) else None


def _last(text: str) -> str | None:
    """Return the last formula or the last number, the later of both; None if there is neither."""
    tail = text[-_TAIL:]
    formula, number = _final(_FORMULA, tail), _final(_NUMBER_TEXT, tail)
    last = formula if formula and (number is None or number.end() <= formula.end()) else number
    if last and _is_qualified(tail, *last.span()):
        return _clean(text)
    if formula and last is formula:
        content = _content(formula)
        if not has_prose(content):
            # `$2$ and $3$` is one answer of two formulas: the whole text is returned.
            return content if not _AND.search(tail[: formula.start()]) else _clean(text)
    return _word(tail, number) if number else None


def _word(text: str, number: re.Match[str]) -> str:
    r"""Return the number, or if a sign of `_SIGNS` touches it, all text between the spaces around.

    `So 3\sqrt{13} long`, matched at 13, gives `3\sqrt{13}`. `(1, -2)`, matched at -2, gives `-2)`,
    which equals no reference, as it should.
    """
    # The characters directly before and after the number.
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
    """Return the text between the delimiters of a match of `_FORMULA`: `$x+1$` -> `x+1`."""
    return _clean(next(filter(None, formula.groups())))


def _clean(text: str) -> str:
    """Remove spaces, quotes, bold and a full stop around an answer: ` **24**` -> `24`."""
    text = text.strip().strip('*"“”` \n')
    # The quote at the end of `f'` is a prime.
    text = text.removesuffix(".").strip()
    return text.strip("'") if text.startswith("'") else text


def _guessed(text: str) -> str | None:
    """Return the last formula or number of the last line with one, or None.

    If the line names several answers or a bound, return the line, which equals no reference.
    """
    line = _concluding_line(text)
    return _clean(line) if _UNCOMMITTED.search(line) else _last(line)


# In the order of the list at the top, 1 to 9.
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

# "The correct answer is **B**", "The right option: (C)".
_LETTER_AFTER_CUE = re.compile(
    r"(?:answer|(?:correct|right|best) (?:choice|option))[*_]*\s*(?:is|are|:|=)?\s*:?\s*"
    r"(?:(?:option|choice)\s*)?"
    r"(?:\$?\\boxed\{)?(?:\\text(?:bf)?\{)?[(\[*\"'$]*([A-D])(?![A-Za-z0-9])",
    re.IGNORECASE,
)
# A letter, but not the article of `A number`.
_OTHER_LETTER = re.compile(r"(?<![A-Za-z])[A-D](?![A-Za-z])(?!(?<=A) [a-z])")
_BOXED_LETTER = re.compile(r"\\boxed\{\s*(?:\\text(?:bf|rm)?\{)?\s*\(?([A-D])\)?\s*\}")
# `(C)`, `**C**`.
_BARE_LETTER = re.compile(r"[\s(\[*\"'$]*([A-D])[\s)\].:*\"'$]*")
# The `B)` of `B) because …`.
_LEADING_LETTER = re.compile(r"[\s(\[*]*([A-D])[)\].:*]")
# `-1,234.5`, `+72`, `.5`.
_PLAIN_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])[-+]?\.\d+"
)


def parse_mmlu_letter(text: str) -> str | None:
    """Return the option that `text` chooses, "A" to "D", or None if it chooses none.

    Tried in this order: the last box with a letter; the last letter after "answer" or "correct
    option" ("The correct answer is B."), none if its sentence denies it or has another letter; a
    text of one letter; a letter at the beginning ("B) because …"). A letter inside a sentence is no
    choice: "A" is also an article.
    """
    if boxed := _final(_BOXED_LETTER, text):
        return boxed[1]
    # The pattern ignores case, also that of the letter.
    cues = [cue for cue in _LETTER_AFTER_CUE.finditer(text) if cue[1].isupper()]
    if cues:
        before = _FULL_STOP.split(text[max(cues[-1].start() - 200, 0) : cues[-1].start()])[-1]
        after = _FULL_STOP.split(text[cues[-1].end() : cues[-1].end() + 200])[0]
        others = {*_OTHER_LETTER.findall(after)} - {cues[-1][1]}
        return None if others or "not" in _spoken(before) else cues[-1][1]
    alone = _BARE_LETTER.fullmatch(text) or _LEADING_LETTER.match(text)
    return alone[1] if alone else None


def parse_gsm8k_number(text: str) -> str | None:
    """Return the last number in `text` without thousands separators ("72", "-1234.5"), or None.

    A digit inside a word ("R2D2") is no number, and a full stop after one is no decimal point.
    """
    last = _final(_PLAIN_NUMBER, text)
    return last[0].replace(",", "").lstrip("+") if last else None
