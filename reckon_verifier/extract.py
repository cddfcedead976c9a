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
import itertools
import re
from collections.abc import Iterator

from reckon_verifier.tree import FUNCTIONS, MAX_COMPLETION_CHARS, names
from reckon_verifier.words import HEDGES, PIECE, has_prose, has_words, is_unit, is_word

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
_BOX = re.compile(r"\\{1,2}(?:boxed|fbox|framebox|beginboxed)\s*(?=\{)")
# A brace, or an escaped character such as `\{`, so that an escaped brace is not counted.
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_NOUN = (
    r"(?:final\s+answer|answer|(?:correct|right|best)\s+(?:option|choice)"
    r"|réponse|respuesta|Antwort|答案|答え)"
)
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
# `$$x$$`, `$x$`, `\(x\)`, `\[x\]` or `**x**`; one of the groups is the content.
_FORMULA = re.compile(
    r"\$\$(.{1,2000}?)\$\$|(?<!\\)\$((?:[^$\\]|\\.){1,2000}?)\$|\\\((.{1,2000}?)\\\)"
    r"|\\\[(.{1,2000}?)\\\]|\*\*([^*\n]{1,200})\*\*",
    re.DOTALL,
)
# A number as a model writes it: `-$1,234.50`, `1{,}234`, `.5`, `1e-3`, `3/4`, `3:45`, `2^{10}`,
# `50\%`; not the digit of `x2`.
_NUMBER_TEXT = re.compile(
    # Sign, currency, integer part.
    r"(?<![A-Za-z0-9_.\\])(?:[-+−]\s?)?(?:[$€£¥]\s?)?(?:\d{1,3}(?:(?:,|\s?\{\s?,\s?\}|,\\!\s?)\d{3})+(?!\d)|\d+)?"
    # Decimals, `0.333...` too, and power of ten; `(?<=\d)` is for an integer without decimals.
    r"(?:[.,]\d+(?:\.{3})?|(?<=\d))(?:[eE][-+]?\d{1,3})?"
    # The rest of a fraction, a ratio or a power; a percent sign.
    r"(?:\s?/\s?\d+(?:\.\d+)?|(?::\d+)+|\^\{?\d+\}?)?(?:\s?\\?%)?"
)
# The end of a sentence, a line or a tag, or a lead-in: the separators of sentences. No end is the
# point of `3.5`, one after a single small letter (`at x = a. Then`), or the sign of `5!`. A
# character that could not be decoded separates too.
_END = re.compile(
    # Most positions begin none of these and fail here, at one comparison.
    r"(?=[.!?。！？।<\x00-\x08\n-\x1f\x7f-\x9f\ufffdSsTtHhi因所इ])"
    r"(?:(?<!\b[a-z])\.(?=\s|(?<!\d\.)$)|(?<![\d)}])!(?=\s|$)|\?(?=\s|$)|[。！？।]|</?\w+>"
    r"|[\x00-\x08\n-\x1f\x7f-\x9f\ufffd]"
    r"|\b(?:[Ss]o|[Tt]hus|[Tt]herefore|[Hh]ence|i\.e\.)[\s,]|因此|所以|इसलिए)"
)
_STOP = re.compile(rf"(?!\n){_END.pattern}")
"""`_END` without the end of a line, over which a formula may go on."""
# What separates mathematics, beside words.
_SEPARATOR = re.compile(
    # `#`, a letter `$x$` of a sentence, an arrow.
    r"(?P<sign>#|\$[A-Za-z]\$(?=\s)|[→⇒∴✅]|[-=]>"
    # An article or a pronoun; two letters by themselves.
    r"|(?<!\S)(?:A|I|a(?=\s(?:[a-z]{2}|\$|\\[(b])))(?!\S)|(?<!\S)(?!or|ln|pi)[A-Za-z]{2}(?=\s+[$\\\w(]))"
    rf"|{PIECE.pattern}"
)
_LAYOUT = names(
    r"\rightarrow \Rightarrow \longrightarrow \Longrightarrow \implies \therefore \to \n \item "
    r"\hfill \newline \par \blacksquare \square \checkmark \Box \qed \iff"
)
"""Commands that separate mathematics as words do."""
_LOOKS = re.compile(
    r"\\(?:text)?color\s*\{[a-zA-Z]+\}|\\(?:displaystyle|[lL]arge|LARGE|[hH]uge|bf|rm)(?![A-Za-z])"
    r"|\\[hv]space\*?\s*\{[^{}]*\}|\\tag\*?\s*\{[^{}]*\}|\\label\s*\{[^{}]*\}|\\[,;:! ]|\\q?quad\b"
    r"|~|\\(?=\\boxed)"
)
"""What changes only the looks of a formula."""
# The ends of a formula, and of a row in it. Mathematics beyond one touches a mark only as `-$`.
_EDGE = re.compile(
    r"(?<!\\)\$\$?|\\[()\[\]]|\*\*|__|\\\\(?:\[[^\]]*\])?|&|\n"
    r"|\\(?:begin|end)\s*\{(?!\w*matrix|cases|array)\w+\*?\}"
)
_OPERATOR = (
    r"[-+*/^_=<>≤≥≠±∓×·÷−–≈≡≢]|\\(?:cdot|times|div|pm|mp|neq?|leq?|geq?|approx|equiv|not|notin"
    r"|ast|circ|in|sim|cong|bmod)(?![A-Za-z])"
)
# Mathematics that lacks what follows it: an operator, or a function.
_DANGLING = re.compile(
    rf"(?:{_OPERATOR}|(?<![A-Za-z])(?:{'|'.join(sorted(FUNCTIONS))}|[dt]?frac))\s*\Z"
)
# Mathematics that lacks what is before it, and what touches only without a space between.
_LEADING = re.compile(rf"\s*(?:{_OPERATOR}|\\?%|pi\b)")
_TIGHT = re.compile(r"\d|\((?![^()]*[a-z]{2})")
_BINARY = re.compile(r"\s*(?:[+×·÷^]|\\(?:cdot|times|div|pm)\b)")
_BRACKET = re.compile(r"(?<!\\)[()\[\]]|\\?[{}]")
# The sign of an item at the beginning of a line, `-`, `(b)` or `2.`; a dash; `Step 2: `.
_ITEM = re.compile(
    r"\A\s*(?:[-–—]|\([a-z]\))\s+|\n\s*(?:[-–—+*>]|\(?(?:\d{1,2}|[a-z]|[ivx]+)[.)])\s+"
    r"|(?<=[\w)]):\s+"
)
# The parts of a formula: brackets, relations that give the value beside them, separators of a list.
_PART = re.compile(
    r"(?P<bracket>(?<!\\)[()\[\]]|\\?[{}])"
    r"|(?P<relation>(?<!\\not)(?<!\\not\s)(?:(?:(?<![!/<>])|(?<=[\w)}\]]!))=(?![/\u0338])"
    r"|[≤≥≈≡∈]|[<>]=|\\(?:approx|equiv|cong|sim(?:eq)?|leq?(?:slant)?|geq?(?:slant)?|in)(?![A-Za-z])))"
    r"|(?P<comma>(?<!\d),|,(?!(?:\s*|\\!)\d{3}(?!\d))|;|(?P<word>\\text\s*\{\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])))"
)
MODULUS = re.compile(
    r"\s*(?:\\p?mod|\(\s*\\?(?:b?mod|(?:text|mathrm)\s*\{\s*mod\s*\})|(?P<operator>\\bmod))"
    r"\s*\{?(?P<modulus>\w+(?:\^\{?\w+\}?)?)\}?\s*\)?"
)
# A matrix that is open, with rows in it.
_ENTRIES = re.compile(
    r"\\begin\s*\{(\w*matrix|cases|array)\*?\}(?!.*\\end\s*\{\1\*?\})", re.DOTALL
)
_VALUE = re.compile(r"[-+]?(?:\d[\d,.]*|\([-\d,. ]+\))")
"""A value as it is compared without a computation: a number, or a tuple of numbers."""
_JOINT = re.compile(r"\\\\|&|\A\W*(?:and|or|,)\W*\Z")
_VERB = re.compile(r"\b(?:is|are|be|equals?|gives?)\b:?|(?<![<>!])[=是为]")
# The words that a number may have directly after it: `60people`, `7V battery`. `7K people` are more
# than 7.
_GLUED = re.compile(r"(?<![^\W\d_]|[\\{])(?:[^\W\d_]{2,}|[AC-JLN-SU-Z](?=\s[a-z]{2})|[A-Z](?=['’&]))")
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
_REACH = 400
"""Number of characters before and after a mark that are read."""
_MARK = "\0"
"""Takes the place of a mark in its formula."""
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
    # The answer of the first pair (rule, answer), or None without any.
    return next(applied_rules(text), ("", None))[1]


def applied_rules(text: str) -> Iterator[tuple[str, str]]:
    """Yield a pair (name of the rule, its answer) for each rule with an answer, in order.

    `extract_answer` uses the first pair. "x = 5" yields ("bare", "x = 5") and ("guessed", "x = 5").
    """
    # A model without an end token writes the next turn too: the text ends before it. A text that
    # starts with such a token is kept whole: the cut would leave nothing.
    match = _TEMPLATE.search(text)
    text = text[: match.start()] if match and match.start() else text
    # GSM8K's calculations, `<<3*4=12>>`, are no part of an answer.
    text = _ANNOTATION.sub("", text) if "<<" in text else text
    # "It is 5. Wait, it is 6": the text begins anew after the last word that takes an answer back.
    # The pattern is slow, and most texts have none of its words.
    lower = text.lower()
    has_retraction = any(word in lower for word in _RETRACTIONS)
    if retraction := _final(_RETRACTED, text) if has_retraction else None:
        text = text[retraction.end() :]
    # Each rule returns its answer as text, or None; the name of `_tagged` is "tagged".
    for rule in _RULES:
        answer = rule(text)
        if answer:
            yield rule.__name__.strip("_"), answer


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
    return _marked(text, first if is_list else start, end, "" if is_list else content) or None


def _joins(between: str) -> bool:
    r"""Return True if the text between two boxes is within one sentence or one formula."""
    # The end of a line is no end of a formula's row, nor of `\boxed{1},` and `\boxed{1} or`.
    return not (_STOP if _JOINT.search(between) else _END).search(between)


def _marked(text: str, start: int, end: int, content: str) -> str:
    r"""Return what a mark, `text[start:end]`, says: its content, or the formula that it is part of.

    Words beside the mark say nothing. A relation separates: `x = -\boxed{5}` -> `-\boxed{5}`, and
    `x \ge \boxed{5}` -> 5.

    Args:
        text: a text with a box or tags.
        start: the index where the mark begins.
        end: the index after it.
        content: the text in it; '' for several boxes, whose formula is the answer.
    """
    mark = text[start:end]
    before = _LOOKS.sub(" ", text[max(0, start - _REACH) : start])
    after = _LOOKS.sub(" ", text[end : end + _REACH])
    entries = _ENTRIES.search(before)
    if entries and not (entries[1] == "array" and before.rstrip(" $&").endswith("=")):
        return _clean(before[entries.start() :] + mark + after.partition("\n\n")[0])
    first, last = _touching(before, after)
    lead, trail = _EDGE.sub(" ", before[first:]), _EDGE.sub(" ", after[:last])
    modulus = MODULUS.match(trail)
    if modulus and (not modulus["operator"] or "equiv" in lead or "≡" in lead):
        trail = trail[modulus.end() :]
        content = content and rf"{content} \pmod{{{modulus['modulus']}}}"
    # A bracket in which there are words too is none of the formula.
    closer, opener = _unmatched(lead + _MARK + trail)
    place = len(lead)
    if opener is not None and opener > place and not trail[opener - place :].strip():
        trail = trail[: opener - place - 1]
    elif opener is not None and opener < place and not lead[:opener].strip() and lead[opener] in "([":
        lead = lead[opener + 1 :]
    if closer is not None and closer > place and not _core(trail[closer - place :]):
        trail = trail[: closer - place - 1]
    formula = f"{lead}{mark}{trail}"
    is_entry, left, right, values = _sides(lead, trail)
    if left == lead and before[:first].strip() and _BINARY.match(lead):
        return _clean(before[:first] + formula)
    if is_entry or not content:
        return _clean(formula)
    if _core(left) or _core(right.rstrip(" -–—/")):
        return _clean(left + mark + right)
    # `7 = \boxed{5}` has two values; the grammar decides whether they are equal.
    others = {value.strip() for value in values if _VALUE.fullmatch(value.strip())}
    return _clean(formula if others - {content.strip()} else content)


def _core(text: str) -> str:
    """Remove spaces and punctuation around a part of a formula."""
    return text.strip(" \t\n,;:.$€£¥\\")


def _sides(lead: str, trail: str) -> tuple[bool, str, str, list[str]]:
    r"""Split the formula around a mark at its relations and commas.

    Returns:
        Whether the mark is an entry of a list; the text before and after the mark on its side of
        the relations; the other sides that are equal to it: of `x = 7 = -\boxed{5}` these are
        False, " -", "" and [" 7 "].
    """
    formula, place = lead + _MARK + trail, len(lead)
    depth, cuts = 0, []
    for part in _PART.finditer(formula):
        if part["bracket"]:
            depth = max(0, depth + (1 if part[0][-1] in "([{" else -1))
        elif not depth:
            cuts.append(part)
    # The entry of the list, and its sides.
    commas = [cut for cut in cuts if cut["comma"]]
    start = max((cut.end() for cut in commas if cut.end() <= place), default=0)
    stop = min((cut.start() for cut in commas if cut.start() > place), default=len(formula))
    relations = [cut for cut in cuts if cut["relation"]]
    equations = [cut for cut in relations if start <= cut.start() < stop]
    # `a, b = \boxed{1, 2}` is no list of `a` and an equation.
    has_name = equations and equations[0].start() < place
    is_named = has_name and (relations[0].start() >= start or any(cut["word"] for cut in commas))
    is_entry = bool(_core(formula[stop:]) or (_core(formula[:start]) and not is_named))
    ends = [start, *(cut.end() for cut in equations)]
    starts = [*(cut.start() for cut in equations), stop]
    index = sum(cut.start() < place for cut in equations)
    values = [
        formula[ends[side] : starts[side]]
        for side, sign in ((index - 1, index - 1), (index + 1, index))
        if 0 <= side < len(ends) and equations[sign][0].strip() == "="
    ]
    left, right = formula[ends[index] : place], formula[place + 1 : starts[index]]
    return is_entry, left, right, values


def _touching(before: str, after: str) -> tuple[int, int]:
    r"""Return where the mathematics begins and ends that touches a mark: (index, index).

    It is `before[begin:]` and `after[:end]`: up to the next word, the end of the sentence or of the
    formula, `$`. Beyond `$` only what lacks an operand touches: the minus of `-$\boxed{5}$`.
    """
    begin = max(
        (each.end() for each in (*_STOP.finditer(before), *_separators(before))), default=0
    )
    # In a table, `| x | \boxed{5} |`, the column.
    is_row = before.rpartition("\n")[2].lstrip().startswith("| ")
    begin = max(begin, before.rfind("|") + 1) if is_row else begin
    maths = before[begin:]
    brackets = [max(map(maths.rfind, each)) for each in ((r"\(", r"\["), (r"\)", r"\]"))]
    is_inside = maths.replace("$$", "$").count("$") % 2 == 1 or brackets[0] > brackets[1]
    if not is_inside:
        line = "\n" * (not begin)
        item = _final(_ITEM, line + maths)
        # Not the minus of `2 apples - \boxed{5}`.
        if item and not (item[0].strip() in "-–—" and re.search(r"\d\s*\w*\Z", before[:begin])):
            begin += item.end() - len(line)
    edges = [edge for edge in _EDGE.finditer(before, begin) if edge[0] != "\n" or not is_inside]
    first = edges[-1].end() if edges else begin
    while edges:
        edge = edges.pop()
        piece = before[edges[-1].end() if edges else begin : edge.start()]
        is_tight = edge.end() == len(before) and edge[0] != "\n"
        if not (
            not piece.strip()
            or _DANGLING.search(piece)
            or (is_tight and re.search(r"[\w)}]\Z", piece))
            or _unmatched(before[begin : edge.start()])[1] is not None
        ):
            break
        first = edge.start() - len(piece)
    # After the mark.
    ends = [_STOP.search(after), next(_separators(after), None)]
    stop = min((each.start() for each in ends if each), default=len(after))
    # A word without a space before it ends the mathematics too: that of `5km`, `5people` and
    # `$5$th`, but not of `5pi` or `5xy`.
    for glued in _GLUED.finditer(after, 0, stop):
        word, is_outside = glued[0], after.startswith("$") and glued[0] != "pi"
        if is_word(word) or is_unit(word) or len(word) == 1 or is_outside:
            stop = min(stop, glued.start())
    if is_row:
        stop = min(stop, after.find("|") % (stop + 1))
    edges = [edge for edge in _EDGE.finditer(after, 0, stop)]
    while is_inside and edges and edges[0][0] == "\n":
        edges.pop(0)
    last = edges[0].start() if edges else stop
    for edge, following in itertools.pairwise((*edges, None)):
        piece = after[edge.end() : following.start() if following else stop]
        if not (
            _DANGLING.search(after[:last])
            or _unmatched(after[:last])[1] is not None
            or (edge[0] != "\n" and (not piece.strip() or _LEADING.match(piece)))
            or (edge[0] != "\n" and not edge.start() and _TIGHT.match(piece))
        ):
            break
        last = edge.end() + len(piece)
    return first, last


def _unmatched(text: str) -> tuple[int | None, int | None]:
    """Return the indices of the first bracket that closes nothing, and of the first one left open."""
    opened: list[int] = []
    closer = None
    for bracket in _BRACKET.finditer(text):
        if bracket[0][-1] in "([{":
            opened.append(bracket.start())
        elif opened:
            opened.pop()
        elif closer is None:
            closer = bracket.start()
    return closer, opened[0] if opened else None


def _guess(text: str, match: re.Match[str], content: str) -> str:
    r"""Return what a formula or number of a sentence says: `content`, or the clause that changes it.

    Words beside it change nothing, but for hedges ("about 5"), a question, or another formula or
    number in the sentence: then the sentence is the answer. Mathematics that touches it belongs to
    the answer: `48 + 24 = 72`.
    """
    before = _END.split(_LOOKS.sub(" ", text[max(0, match.start() - _REACH) : match.start()]))[-1]
    stop = _END.search(text, match.end(), match.end() + _REACH)
    after = _LOOKS.sub(" ", text[match.end() : stop.start() if stop else match.end() + _REACH])
    first, last = _touching(before, after)
    lead, trail = _EDGE.sub(" ", before[first:]), _EDGE.sub(" ", after[:last])
    is_denied = (
        _QUALIFIERS & {*_spoken(before)[-3:], *_spoken(after)[:2]}
        or _DENIED_BEFORE.search(before)
        or _DENIED_AFTER.match(after)
    )
    is_question = stop is not None and stop[0] in "?？"
    others = match.re.finditer(f"{before[:first]} {after[last:]}")
    has_rival = any(re.search(r"\d", each[0]) and each[0] != match[0] for each in others)
    # `2 apples + 5`: an operator after a word, so that the number is a part only.
    is_part = before[:first].strip() and _BINARY.match(lead)
    if is_denied or is_question or has_rival or is_part:
        return _clean(before + match[0] + after) + "?" * is_question
    lead, trail = _core(lead).removeprefix("/"), _core(trail).rstrip(" -–—/")
    if lead in ("", "=") and not trail:
        return _clean(content)
    return _clean(f"{lead} {content}{trail}" if lead else f"{content}{trail}")


def _separators(text: str) -> Iterator[re.Match[str]]:
    r"""Yield a match for each part that is no mathematics: a word, also in `\text{…}`, an arrow.

    In `thus x = 5 \text{ cm}` these are `thus` and `\text{ cm}`.
    """
    for piece in _SEPARATOR.finditer(text):
        # The groups of `_SEPARATOR`: "text" is the inside of `\text{…}`, "word" a run of letters,
        # "sign" an arrow, a line break and the like.
        inside = (piece["text"] or "").strip()
        if (
            piece["sign"]
            # Not `sin` or `xy`.
            or (piece["word"] and is_word(piece["word"]))
            # Words, or a unit of two letters or more: one letter, `\text{m}`, may be a variable.
            or (inside and (has_words(inside) or (inside[1:] and is_unit(inside))))
            # A command such as `\implies`.
            or piece[0] in _LAYOUT
        ):
            yield piece


def _spoken(text: str) -> list[str]:
    """Return the words of a text in lower case; "not" for "isn't"."""
    return re.findall(r"(?<![\\a-z])[a-z]+", text.lower().replace("n't", " not"))


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
        # Delimiters and a full stop may be around the box, and nothing else.
        outside = _EDGE.sub("", _LOOKS.sub("", answer[:start] + answer[end:]))
        return None if outside.strip(" \n.") else _clean(content)
    bare = answer.strip()
    # `<answer>5</answer>` and the like, as one pair around everything.
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
        # `rfind` returns -1 if there is no tag; text.rfind(opening, 0, 0) is -1 too.
        end = text.rfind(closing)
        start = text.rfind(opening, 0, max(end, 0))
        answer = text[start + len(opening) : end].strip()
        if start >= 0 and answer:
            # The answer, or the clause around the tags that changes it.
            return _marked(text, start, end + len(closing), answer)
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
        # The sentence of the cue up to the cue.
        before = _END.split(text[max(cue.start() - _REACH, 0) : cue.start()])[-1]
        rest = text[cue.end() : cue.end() + 2000].lstrip()
        answer = _statement(rest)
        if not answer:
            continue
        # "Half the answer is 5" and "the wrong answer is 5" say what the answer is not: return
        # the words before the cue too. `_spoken` returns words in lower case; the last three count.
        if _QUALIFIERS & {*_spoken(before)[-3:]}:
            return _clean(f"{before}{cue[0]}{rest}")
        return answer
    return None


def _statement(text: str) -> str | None:
    """Return the answer at the beginning of `text`; None or '' if it has none.

    This is the first line if it has no prose and at most `_REACH` characters. Otherwise it is the
    first sentence if it has no prose, or else the sentence's last formula or number.
    """
    # A formula at the beginning may be longer than a line: the line then ends after it.
    formula = _FORMULA.match(text)
    line_end = text.find("\n", formula.end() if formula else 0)
    line = _clean(text[: line_end if line_end >= 0 else None])
    if line and not has_prose(line) and len(line) <= _REACH:
        return line
    # `stop` is the end of the first sentence.
    stop = _END.search(text)
    sentence = text[: stop.end() if stop else None]
    return _last(sentence) if has_prose(sentence) else _clean(sentence)


def _bare(text: str) -> str | None:
    """Return the whole text if it is a bare expression, `x = 5`, or a word, `no`; else None.

    None also if it has words beside a digit, is prose, or is longer than 400 characters.
    """
    clean = _clean(text)
    if not clean or len(clean) > 400:
        return None
    # `has_words` is True for one word that is no mathematics, "5 apples"; `has_prose` for two words
    # or more.
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
    verb = _final(_VERB, line)
    # The text after the last "is" or "=" of the line.
    rest = _clean(line[verb.end() :]) if verb else ""
    # One or two words are an answer only where the whole completion has no digit.
    may_be_words = not re.search(r"\d", text) and len(rest.split()) <= 2
    # Without a number or a formula, which `_last` reads below.
    is_plain = not re.search(r"[\d$]|\\[(\]]", rest) and len(rest) <= 200
    if rest and is_plain and (may_be_words or not has_words(rest)):
        return rest
    # The whole line where "or" leaves the answer open, or where a digit of another script follows
    # a letter: `H２O` has no number, but `_last` would return "O".
    return _clean(line) if re.search(r"\bor |[^\W\d_](?![0-9])\d", line) else _last(line)


def _last(text: str) -> str | None:
    """Return what the last formula or number says, the later of both; None if there is neither.

    If its sentence has another one of its kind, return the sentence: it has no single answer.
    """
    # The last matches, or None.
    formula, number = _final(_FORMULA, text), _final(_NUMBER_TEXT, text)
    # Words between delimiters, `**Check the result**`, are no formula.
    if formula and has_prose(_content(formula)):
        formula = None
    # The number comes after the formula.
    if formula and number and number.end() > formula.end():
        formula = None
    last = formula or number
    if not last:
        return None
    content = _content(formula) if formula else last[0]
    # `last.re` is the pattern of formulas or of numbers: another match in the sentence is a rival.
    return _guess(text, last, content)


def _final(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match of `pattern`, or None."""
    last = collections.deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None


def _content(formula: re.Match[str]) -> str:
    """Return the text between the delimiters of a match of `_FORMULA`: `$x+1$` -> `x+1`."""
    content: str = next(filter(None, formula.groups()))
    return content


def _unstopped(text: str) -> str:
    """Remove a full stop at the end; the dots of `0.333...` remain."""
    return text if text.endswith("..") else text.removesuffix(".")


def _clean(text: str) -> str:
    """Remove spaces, quotes, bold and a full stop around an answer: ` **24**` -> `24`."""
    # Three times, since marks may be inside one another: `**"24."**`.
    for _ in "**.":
        text = _unstopped(text.strip().strip('*"“”`'))
    # Delimiters around the whole answer: `$24.$` -> `24`.
    formula = _FORMULA.match(text)
    if formula and formula.end() == len(text):
        text = _unstopped(_content(formula).strip()).strip()
    # A quote at the end only may be the prime of `f'`.
    return text.strip("'") if text.startswith("'") else text


# In the order of the list at the top, 1 to 7.
_RULES = (_boxed, _tagged, _hashed, _announced, last_boxed, _bare, _guessed)

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
    option" ("The correct answer is B."), none if its sentence has "not" before it or another letter
    after it; a text of one letter; a letter at the beginning ("B) because …"). Any other letter
    inside a sentence is no choice: "A" is also an article.
    """
    if boxed := _final(_BOXED_LETTER, text):
        return boxed[1]
    # cue[1] is the letter. The pattern ignores case, and "a" is mostly an article.
    cues = [cue for cue in _LETTER_AFTER_CUE.finditer(text) if cue[1].isupper()]
    if cues:
        # The rest of the sentence, before and after the last cue with its letter.
        before = _END.split(text[max(cues[-1].start() - 200, 0) : cues[-1].start()])[-1]
        after = _END.split(text[cues[-1].end() : cues[-1].end() + 200])[0]
        others = {*_OTHER_LETTER.findall(after)} - {cues[-1][1]}
        return None if others or "not" in _spoken(before) else cues[-1][1]
    # "(C)", or the "B)" of "B) because …".
    alone = _BARE_LETTER.fullmatch(text) or _LEADING_LETTER.match(text)
    return alone[1] if alone else None


def parse_gsm8k_number(text: str) -> str | None:
    """Return the last number in `text` without thousands separators ("72", "-1234.5"), or None.

    A digit inside a word ("R2D2") is no number, and a full stop after one is no decimal point.
    """
    last = _final(_PLAIN_NUMBER, text)
    return last[0].replace(",", "").lstrip("+") if last else None
