r"""Extract the final answer from a completion, as text: `… so \boxed{\frac12}.` -> `\frac12`.

The marks of a prompt format come first (`Rollout.answer`). If a completion lacks them, the rules of
`_RULES` are tried in this order, from the most explicit mark to a guess, until one finds an answer:

1. `\boxed{…}` after the reasoning, the last one;
2. answer tags of any known format, the last complete pair;
3. the first line after the last `####`;
4. what follows the last "the answer is", "Final answer:", `# Answer` or a last line `A: 24`;
5. a box inside the reasoning, for completions that never got out of it;
6. the whole text, where it is a bare expression;
7. the last formula or number of the last line with one.

A box comes first because models copy `# Answer` and "the answer is" from prompts, but box only
their answer.

Rules 1, 2, 5 and 7, and rule 4 in prose, find a candidate inside a text, and `_clause` decides what
it says: the candidate is the answer only if nothing but words is beside it. Else the answer is all
mathematics around it, `2 \cdot \boxed{5}`, or the sentence, "not 5", and the grammar decides
whether this says a value.
"""

import collections
import re
from collections.abc import Iterator

from reckon_verifier.formula import (
    BINARY,
    EDGES,
    END,
    LOOKS,
    REACH,
    STOP,
    core,
    final,
    said,
    sentence_before,
    spoken,
    touching,
)
from reckon_verifier.tree import MAX_COMPLETION_CHARS, names
from reckon_verifier.words import HEDGES, has_prose, has_words

_TEMPLATE = re.compile(r"<\|(?:im_end|im_start\|>(?:user|system)|endoftext|eot_id|end_of_text)\b")
_ANNOTATION = re.compile(r"<<[^<>\n]{0,200}>>")
_REASONING_ENDS = ("</think>", "</reasoning>", "<end_working_out>")
_ANSWER_TAGS = (
    ("<answer>", "</answer>"),
    ("<SOLUTION>", "</SOLUTION>"),
    ("<|begin_of_box|>", "<|end_of_box|>"),
)
_BOX = re.compile(r"\\{1,2}(?:boxed|fbox|framebox|beginboxed)\s*(?=\{)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_NOUN = (
    r"(?:final\s+answer|answer|(?:correct|right|best)\s+(?:option|choice)"
    r"|réponse|respuesta|Antwort|答案|答え)"
)
_CUE = re.compile(
    # A line `## Answer` before the line of the answer, or `Answer - `.
    rf"(?:^[ \t>]*(?:\#+[ \t]*|[-*][ \t]+)?[*_]*(?:the\s)?{_NOUN}[*_ \t]*(?:[-–—]\s|\n)"
    # `**A:** ` at the beginning of the last line.
    rf"|^[*_]*A[*_]*[:：](?=[^\n]*\s*\Z)"
    # `answer is `, `Final answer: `, `答案是`.
    rf"|(?<![^\W_]){_NOUN}[*_]*\s*(?:is\s*:?|are\s*:?|:|=|：|是|为|est\b|es\b|ist\b)"
    r"(?:[\s,]*\b(?:indeed|thus|clearly|therefore|simply|hence|obviously|then|just|also|actually"
    r"|of course)\b,?)*)[*_\s]*",
    re.IGNORECASE | re.MULTILINE,
)
# "The answer is correct": a judgement, which states no answer.
_JUDGEMENT = re.compile(
    r"\b(?:answer|result|solution|calculation)s?\s+(?:is|are|seems?|looks?)\s+"
    r"(?:(?:indeed|thus|clearly|therefore|also|both|quite)\s+)*(?:correct|right|consistent|reasonable|valid"
    r"|plausible|verified|confirmed|sensible|accurate|an integer|a whole number)\b",
    re.IGNORECASE,
)
# The reason after an answer: `42, since 6·7 = 42`, `42 (6 times 7)`, `42, not 48`.
_REASON = re.compile(
    r"(?<=[\w$)}%*])(?:,?\s{1,4}(?:because|since|as(?! (?:well|many|much|few|little|long)\b))\b"
    r"|,\s{1,4}(?:not|which)\b"
    r"|,?\s{1,4}\((?:since|because|as|by|from|that is|\d+ (?:times|plus|minus))\b).*",
    re.DOTALL,
)
# A sum of amounts with their unit or currency: `$10 + $14 = **$24**`.
_AMOUNT = r"\*{0,2}(?:\\?[$€£]\s?)?\d[\d,]{0,20}(?:\.\d{1,9})?(?:\s[A-Za-z]{2,20})?\*{0,2}"
_SUM = re.compile(
    rf"(?<![\w$=]){_AMOUNT}(?:\s?[-+*/×÷·−x]\s?{_AMOUNT}){{1,8}}\s?=\s?(?P<total>{_AMOUNT})(?![\w^=(])"
)
_EMPHASIS = re.compile(r"(?<![\w*_\\)}])(\*|__)(?=[^\s*_])([^*_\n]{1,200})(?<=\S)\1(?![\w*_])")
# `$$x$$`, `$x$`, `\(x\)`, `\[x\]` or `**x**`; one of the groups is the content.
_FORMULA = re.compile(
    r"\$\$(.{1,2000}?)\$\$|(?<!\\)\$((?:[^$\\]|\\.){1,2000}?)\$|\\\((.{1,2000}?)\\\)"
    r"|\\\[(.{1,2000}?)\\\]|\*\*([^*\n]{1,200})\*\*",
    re.DOTALL,
)
# A number as a model writes it: `-$1,234.50`, `1{,}234`, `.5`, `1e-3`, `3/4`, `3:45`, `2^{10}`,
# `50\%`; not the digit of `x2`.
_NUMBER_TEXT = re.compile(
    r"(?<![A-Za-z0-9_.\\])(?:[-+−]\s?)?(?:[$€£¥]\s?)?(?:\d{1,3}(?:(?:,|\s?\{\s?,\s?\}|,\\!\s?)\d{3})+(?!\d)|\d+)?"
    r"(?:[.,]\d+(?:\.{3})?|(?<=\d))(?:[eE][-+]?\d{1,3})?"
    r"(?:\s?/\s?\d+(?:\.\d+)?|(?::\d+)+|\^\{?\d+\}?)?(?:\s?\\?%)?"
)
_JOINT = re.compile(r"\\\\|&|\A\W*(?:and|or|,)\W*\Z")
_VERB = re.compile(r"\b(?:is|are|be|equals?|gives?)\b:?|(?<![<>!])[=是为]")
_QUALIFIERS = HEDGES - names(
    "is are was were and or if when while all any each every both only other others another before "
    "after previous next some many few odd even true unknown guess"
) | names("loss deficit debt short owe owes")
"""Words beside a number or before "the answer" that change it: `negative`, `million`, `about`."""
# `the square of`, 不是, 负 and 大于 before a number.
_DENIED_BEFORE = re.compile(
    r"(?:\b(?:root|square|cube|negative|reciprocal|log|logarithm) of"
    r"|\b(?:half|double|triple)(?: of)?|\b(?:nicht|kein|pas|не|минус)"
    r"|(?:不|[负負约約近]|[大小少多]于|超过|没有|至[少多])[是为等于到 ]{0,3})[\s$]*\Z"
)
# `is not correct`, `which is wrong`, 万 (ten thousand), 或 (or) and 不对 (wrong) after it.
_DENIED_AFTER = re.compile(
    r"[\s$]*(?:(?:is not|isn't|,? which is (?:wrong|not)|per cent|por ciento|pour cent)\b"
    r"|[万萬亿億百或]|千(?![米克瓦])|是?(?:不[是对對]|错|錯)|的[平立]方)"
)
# The beginning of a sentence that takes back what is before it: `Wait, it is 6`.
_RETRACTIONS = ("wait", "actually", "sorry", "oops", "correction", "hold on", "scratch that")
_RETRACTED = re.compile(
    rf"(?:^|[.!?>]\s)[ \t]*(?:[-*>] |but |hmm,? |no,? )?(?:{'|'.join(_RETRACTIONS)})\b",
    re.IGNORECASE | re.MULTILINE,
)
_TAIL = 4_000
"""Number of characters at the end of a text that the guess (rule 7) reads."""
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


def extract_answer(completion: str) -> str | None:
    r"""Return the final answer of `completion` as text, or None if it has none.

    `"… so \boxed{72}."` gives "72", and so does `"The answer is 72."`. The order of the rules is at
    the top of this module. No text makes this function raise, and its time is linear in the length
    of the text.
    """
    # Only the end of a very long completion is read, since the answer is there.
    text = completion[-MAX_COMPLETION_CHARS:]
    return next(applied_rules(text), ("", None))[1]


def applied_rules(text: str) -> Iterator[tuple[str, str]]:
    """Yield a pair (name of the rule, its answer) for each rule with an answer, in order.

    `extract_answer` uses the first pair. "x = 5" yields ("bare", "x = 5") and ("guessed", "x = 5").
    """
    # A model without an end token writes the next turn too.
    match = _TEMPLATE.search(text)
    text = text[: match.start()] if match and match.start() else text
    text = _ANNOTATION.sub("", text) if "<<" in text else text
    # "It is 5. Wait, it is 6" begins anew. The pattern is slow, and most texts have none of its
    # words.
    lower = text.lower()
    has_retraction = any(word in lower for word in _RETRACTIONS)
    if retraction := final(_RETRACTED, text) if has_retraction else None:
        text = text[retraction.end() :]
    statements = ""
    for rule in _RULES:
        is_marked = rule in (_boxed, _tagged, last_boxed)
        statements = statements or ("" if is_marked else _statements(text))
        answer = rule(text if is_marked else statements)
        if answer:
            yield rule.__name__.strip("_"), answer


def _statements(text: str) -> str:
    """Return a text without judgements of its answer, emphasis and sums of amounts.

    "It is $10 + $14 = *$24*. The answer is correct." -> "It is $24."
    """
    for match in reversed(collections.deque(_JUDGEMENT.finditer(text), maxlen=4)):
        stop = END.search(text, match.end())
        if ":" not in text[match.end() : stop.start() if stop else None]:
            start = match.start() - len(sentence_before(text, match.start()))
            text = text[:start] + (text[stop.end() :] if stop else "")
    return _SUM.sub(_total, _EMPHASIS.sub(r"\2", text))


def _total(match: re.Match[str]) -> str:
    """Return the total of a sum of amounts of one unit; the sum itself without a unit."""
    units = {"".join(re.findall("[$€£A-Za-z]", each)) for each in re.findall(_AMOUNT, match[0])}
    is_one = len(units - {"", "x"}) == 1 and re.search("[$€£A-Za-z]", match["total"])
    return match["total"].strip("*") if is_one else match[0]


def last_boxed(text: str) -> str | None:
    r"""Return what the last `\boxed{…}` says, or None if there is no box or it is empty.

    This is its content, whatever words are around it; the formula that the box is a part of,
    `-\boxed{5}`; or all boxes of its sentence, `\boxed{1} or \boxed{2}`.
    """
    boxes = [box for box in _boxes(text) if box[2].strip()]
    if not boxes:
        return None
    start, end, content = boxes.pop()
    first, is_list = start, False
    while boxes and _joins(text[boxes[-1][1] : first]):
        first, _, other = boxes.pop()
        is_list |= other != content
    return _clean(said(text, first if is_list else start, end, "" if is_list else content)) or None


def _joins(between: str) -> bool:
    r"""Return True if the text between two boxes is within one sentence or one formula."""
    # The end of a line is no end of a formula's row, nor of `\boxed{1},` and `\boxed{1} or`.
    return not (STOP if _JOINT.search(between) else END).search(between)


def _guess(text: str, match: re.Match[str], content: str) -> str:
    r"""Return what a formula or number of a sentence says: `content`, or the clause around it.

    Words beside it change nothing, but for hedges ("about 5"), a question, or another formula or
    number in the sentence: then the sentence is the answer. Mathematics that touches it belongs to
    the answer: `48 + 24 = 72`.
    """
    before = LOOKS.sub(" ", sentence_before(text, match.start()))
    stop = END.search(text, match.end(), match.end() + REACH)
    after = LOOKS.sub(" ", text[match.end() : stop.start() if stop else match.end() + REACH])
    lead, trail = touching(before, after)
    rest = before[: len(before) - len(lead)]
    others = match.re.finditer(f"{rest} {after[len(trail) :]}")
    is_question = stop is not None and stop[0] in "?？"
    if (
        is_question
        or _QUALIFIERS & {*spoken(before)[-3:], *spoken(after)[:2]}
        or _DENIED_BEFORE.search(before)
        or _DENIED_AFTER.match(after)
        or any(re.search(r"\d", each[0]) and each[0] != match[0] for each in others)
        # `2 apples + 5`: an operator after a word, so that the number is a part only.
        or (rest.strip() and BINARY.match(lead))
    ):
        return _clean(before + match[0] + after) + "?" * is_question
    is_alone = core(lead) in ("", "=") and not core(trail.rstrip(" -–—/"))
    return _clean(content if is_alone else (lead + content + trail).strip(" ,;:"))


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
        around = (EDGES.sub("", LOOKS.sub("", each)) for each in (answer[:start], answer[end:]))
        outside = next(around) + next(around).strip().removesuffix(".")
        return None if outside.strip() else _clean(content)
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
    end = 0
    while match := _BOX.search(text, end):
        start, end, depth = match.end(), len(text), 0
        closing = None
        for brace in _BRACE.finditer(text, start):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                closing, end = brace.span()
                break
        yield match.start(), end, text[start + 1 : closing]


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
        end = text.rfind(closing)
        start = text.rfind(opening, 0, max(end, 0))
        answer = text[start + len(opening) : end].strip()
        if start >= 0 and answer:
            return _clean(said(text, start, end + len(closing), answer))
    return None


def _hashed(text: str) -> str | None:
    """Return the first line after the last `####`, GSM8K's mark, or None: `#### 24` -> `24`."""
    _, hashes, after = text.rpartition("####")
    lines = after.strip().splitlines()
    return _clean(lines[0]) if hashes and lines else None


def _announced(text: str) -> str | None:
    """Return the answer after the last cue with one (such as "The answer is"), or None.

    "So the answer is 5 apples. Done." -> "5 apples". The answer may be on the line below the cue.
    """
    # At most eight cues: a text full of them would cost a search after each.
    for cue in reversed(collections.deque(_CUE.finditer(text), maxlen=8)):
        before = sentence_before(text, cue.start())
        rest = text[cue.end() : cue.end() + 2000].lstrip()
        answer = _statement(rest)
        if not answer:
            continue
        # "Half the answer is 5" and "the wrong answer is 5" say what the answer is not.
        if _QUALIFIERS & {*spoken(before)[-3:]}:
            return _clean(f"{before}{cue[0]}{rest}")
        return answer
    return None


def _statement(text: str) -> str | None:
    """Return the answer at the beginning of `text`; None or '' if it has none.

    This is the first line if it has no prose and at most `REACH` characters. Otherwise it is the
    first sentence if it has no prose, or else the sentence's last formula or number.
    """
    # A formula at the beginning may be longer than a line: the line then ends after it.
    formula = _FORMULA.match(text)
    line_end = text.find("\n", formula.end() if formula else 0)
    line = _clean(_REASON.sub("", text[: line_end if line_end >= 0 else None]))
    # `42 = 6 \cdot 7`
    if value := re.fullmatch(
        r"([-+]?\d[\d,.]*)\s*=[^=]*\d\s*(?:[-+*/^×÷·(]|\\(?:cdot|times))[^=]*", line
    ):
        return value[1]
    if line and not has_prose(line) and len(line) <= REACH:
        return line
    stop = END.search(text)
    sentence = text[: stop.end() if stop else None]
    return _last(sentence) if has_prose(sentence) else _clean(sentence)


def _bare(text: str) -> str | None:
    """Return the whole text if it is a bare expression, `x = 5`, or a word, `no`; else None.

    None also if it has words beside a digit, is prose, or is longer than 400 characters.
    """
    clean = _clean(text)
    if not clean or len(clean) > 400:
        return None
    mixed = has_words(clean) and any(letter.isdigit() for letter in clean)
    return None if mixed or has_prose(clean) else clean


def _guessed(text: str) -> str | None:
    """Return what the last line with a number or a formula (else the last line) says, or None.

    This is the last formula or number with the mathematics around it, "so 3 + 4 = 7 apples" ->
    "3 + 4 = 7"; or, if neither comes after the last "is" or "=", what does: "So it is even" ->
    "even".
    """
    # The lines of the end of the text; the last one with a digit, `$` or a LaTeX command.
    lines = [line for line in text[-_TAIL:].splitlines() if line.strip()]
    with_maths = (line for line in reversed(lines) if re.search(r"\d|\$|\\[(\[a-zA-Z]", line))
    line = next(with_maths, lines[-1] if lines else "")
    verb = final(_VERB, line)
    rest = _clean(line[verb.end() :]) if verb else ""
    # One or two words are an answer only where the whole completion has no digit.
    may_be_words = not re.search(r"\d", text) and len(rest.split()) <= 2
    is_plain = not re.search(r"[\d$]|\\[(\]]", rest) and len(rest) <= 200
    if rest and is_plain and (may_be_words or not has_words(rest)):
        return rest
    # "or" leaves the answer open; `H２O` has no number, but `_last` would return "O".
    return _clean(line) if re.search(r"\bor |[^\W\d_](?![0-9])\d", line) else _last(line)


def _last(text: str) -> str | None:
    """Return what the last formula or number says, the later of both; None if there is neither.

    If its sentence has another one of its kind, return the sentence: it has no single answer.
    """
    formula, number = final(_FORMULA, text), final(_NUMBER_TEXT, text)
    # Words between delimiters, `**Check the result**`, are no formula.
    if formula and has_prose(_content(formula)):
        formula = None
    if formula and number and number.end() > formula.end():
        formula = None
    last = formula or number
    if not last:
        return None
    content = _content(formula) if formula else last[0]
    # `last.re` is the pattern of formulas or of numbers: another match in the sentence is a rival.
    return _guess(text, last, content)


def _content(formula: re.Match[str]) -> str:
    """Return the text between the delimiters of a match of `_FORMULA`: `$x+1$` -> `x+1`."""
    return formula[formula.lastindex or 0]


def _unstopped(text: str) -> str:
    """Remove a full stop at the end; the dots of `0.333...` remain."""
    return text if text.endswith("..") else text.removesuffix(".")


def _clean(text: str) -> str:
    """Remove spaces, quotes, bold and a full stop around an answer: ` **24**` -> `24`."""
    # Three times, since marks may be inside one another: `**"24."**`.
    for _ in "**.":
        text = _unstopped(text.strip().strip('*"“”`'))
    formula = _FORMULA.match(text)
    if formula and formula.end() == len(text):
        text = _unstopped(_content(formula).strip()).strip()
    # A quote at the end only may be the prime of `f'`.
    return text.strip("'") if text.startswith("'") else text


_RULES = (_boxed, _tagged, _hashed, _announced, last_boxed, _bare, _guessed)
