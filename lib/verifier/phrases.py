r"""From a text to its tree: frames of words that are known whole, and mathematics inside them.

Each phrase consumes the whole text. It names the closed list of words that it leaves out; a word
that is in no list stays, and then the text equals only the same words.
"""

import json
import re
from collections.abc import Callable
from fractions import Fraction

from lib.verifier.parse import parse
from lib.verifier.tokens import CLOSE, OPEN, WORDS, Token, canonical, tokenize
from lib.verifier.tree import (
    REALS,
    Node,
    TooHard,
    Unparsable,
    free_symbols,
    number,
    pairs,
    remembered,
    symbol,
)
from lib.verifier.words import FRAME, HEDGES, PARTS, is_number_word, spelled_number

Tokens = tuple[Token, ...]


@remembered(8192)
def read(text: str) -> Node:
    """Return the tree of an answer.

    Raises:
        Unparsable: a character that no rule reads.
        TooHard: beyond a limit.
    """
    tokens = _in_digits(_bare(tokenize(_of_code(text))))
    if not tokens:
        raise Unparsable("nothing is left")
    try:
        return _read(tokens)
    except RecursionError as error:
        raise TooHard("phrases inside one another") from error


def _of_code(text: str) -> str:
    """Return the answer in a JSON object; names of Python's modules are removed."""
    stripped = text.strip()
    if stripped.startswith("{") and '"' in stripped and len(stripped) < 500:
        try:
            value = json.loads(stripped)
        except (ValueError, RecursionError):
            return text
        if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _KEYS:
            inner = next(iter(value.values()))
            is_scalar = isinstance(inner, str | int | float) and not isinstance(inner, bool)
            return str(inner) if is_scalar else json.dumps(inner).replace('"', "")
    return (
        re.sub(r"\b(?:math|np|numpy|sympy|sp|cmath)\.(?=[a-z])", "", text) if "." in text else text
    )


_KEYS = ("answer", "final_answer", "result", "value", "solution", "Answer", "ans")


def _bare(tokens: Tokens) -> Tokens:
    """Remove braces around the whole, and a full stop at the end inside them."""
    while tokens and tokens[-1].text == ".":
        tokens = tokens[:-1]
    if len(tokens) > 4 and (tokens[0].text == "]" or tokens[-1].text == "["):
        # `]1, 3[`, an open interval.
        first = tokens[0]._replace(text="(") if tokens[0].text == "]" else tokens[0]
        last = tokens[-1]._replace(text=")") if tokens[-1].text == "[" else tokens[-1]
        tokens = (first, *tokens[1:-1], last)
    if len(tokens) > 2 and tokens[0] == OPEN and tokens[-1] == CLOSE and _is_one_group(tokens):
        inside = tokens[1:-1]
        if not any(token.text in (",", ";", "choose") for token in inside):
            return inside if inside[0] != OPEN else _bare(inside)
    return tokens


def _is_one_group(tokens: Tokens) -> bool:
    depth = 0
    for place, token in enumerate(tokens):
        depth += (token == OPEN) - (token == CLOSE)
        if depth == 0:
            return place == len(tokens) - 1
    return False


def _in_digits(tokens: Tokens) -> Tokens:
    """Write `twenty-one`, `3 hundred`, `7 tenths`, `7 squared` and `7 plus 1` in digits and
    signs.
    """
    words = [token.text.lower() if token.kind in WORDS else "" for token in tokens]
    if not any(
        is_number_word(word) or word in PARTS or word in _SIGN_WORDS or word == "to"
        for word in words
    ):
        return tokens
    new: list[Token] = []
    place = 0
    while place < len(tokens):
        end = place
        spelled: list[str] = []
        while end < len(tokens):
            is_joined = bool(spelled) and end + 1 < len(tokens) and tokens[end].text in ("-", "and")
            following = words[end + 1] if is_joined else ""
            if is_number_word(words[end]):
                spelled.append(words[end])
                end += 1
            elif (
                is_joined
                and is_number_word(following)
                and (tokens[end].text == "-" or spelled[-1] == "hundred")
            ):
                spelled.append(following)
                end += 2
            else:
                break
        before = new[-1] if new else None
        is_scaled = (
            bool(spelled)
            and before is not None
            and before.kind == "number"
            and _SIMPLE.fullmatch(before.text)
        )
        value = (
            spelled_number(spelled, Fraction(before.text) if is_scaled and before else None)
            if spelled
            else None
        )
        if value is not None:
            # Only the number before is a decimal.
            places = len(new.pop().text.partition(".")[2]) if is_scaled else 0
            new.append(Token("number", _decimal(value, places)))
            place = end
            continue
        is_after = bool(new) and new[-1].kind == "number"
        if is_after and words[place] in PARTS:
            new += [Token("operator", "/"), Token("number", PARTS[words[place]])]
        elif (
            words[place] == "to"
            and len(tokens) == 3
            and tokens[0].kind == tokens[2].kind == "number"
        ):
            new.append(Token("operator", ":"))
        elif is_after and words[place] in _SIGN_WORDS and _follows(tokens, place, words[place]):
            new += _SIGN_WORDS[words[place]]
        else:
            new.append(tokens[place])
        place += 1
    return tuple(new)


def _decimal(value: Fraction, places: int) -> str:
    """Write a number that has at most so many decimal places."""
    digits = str(int(value * 10**places)).zfill(places + 1)
    whole, rest = digits[: len(digits) - places], digits[len(digits) - places :]
    return whole if value.denominator == 1 else f"{whole}.{rest}"


def _follows(tokens: Tokens, place: int, word: str) -> bool:
    """Return True if a sign in words has what it needs after it."""
    is_last = place == len(tokens) - 1
    return (
        is_last
        if word in ("squared", "cubed")
        else not is_last and tokens[place + 1].kind == "number"
    )


_SIMPLE = re.compile(r"\d+(?:\.\d+)?")
_SIGN_WORDS: dict[str, list[Token]] = {
    "squared": [Token("operator", "^"), Token("number", "2")],
    "cubed": [Token("operator", "^"), Token("number", "3")],
    "plus": [Token("operator", "+")],
    "minus": [Token("operator", "-")],
}

_START = re.compile(
    r"(?:= |(?:so|thus|therefore|hence) (?:, )?|\\therefore |(?:only|exactly|just) (?=[^ ])"
    r"|(?:the )?line (?=[a-z] =)"
    r"|(?:the )?(?:final |correct |required )?(?:answer|result) (?:is (?:: )?|: |="
    r" )(?:(?:simply|equal to) )?"
    r"|there (?:is|are|were) (?:exactly )?(?=\d)|(?:it|this) (?:is|equals) |on (?=(?:mon|tues"
    r"|wednes|thurs|fri|satur|sun)day$)"
    r"|(?:\\approx|approximately) (?=[-\d]))"
)
_END = re.compile(
    r" (?:is|are) (?:the )?(?:(?:only|unique|final|correct|required|possible|such) )*"
    r"(?:answers?|solutions?|values?|results?|maximum|minimum|maximum value|minimum value"
    r"|numbers?)$"
)
_REASON = re.compile(r"(?: ,)? (?:\( )?(?:since|because) ([^)]*?)(?: \))?$")
_APPROXIMATION = re.compile(
    r" \( (?:(?:approximately|about|roughly) |\\approx )([-\d.]+)( [a-z]+)? \)$"
)
_LABEL = re.compile(r"((?:[^\W\d_]+ )+)(?::|is|are|equals|is equal to) (?=\S)")
_DECISION = re.compile(
    r"(yes|no|true|false) (?:[,:;] )?((?:it|this|that|they|we|there|such) .*|(?:because|since) .*)"
)
_SAFE = frozenset(
    [
        "it",
        "this",
        "that",
        "they",
        "we",
        "there",
        "such",
        "is",
        "are",
        "does",
        "do",
        "can",
        "has",
        "have",
        "exists",
        "exist",
        "holds",
        "possible",
        "the",
        "true",
        "correct",
        "an",
        "a",
    ]
)
_DENIALS = frozenset(["not", "cannot", "impossible", "no", "n't"])
_NOTHING = re.compile(
    r"(?:there (?:is|are|exists?) )?no (?:(?:such|real|integer|positive|natural|rational"
    r"|possible|valid|other) )*"
    r"(?:solutions?|values?|numbers?|integers?|roots?|pairs?|triples?|functions?|such"
    r" [a-z]+)(?: exists?)?|none(?: exists?)?"
)
_INFINITE = re.compile(
    r"(?:there are )?infinitely many(?: solutions| values)?|infinite(?: solutions)?"
)
_DOMAINS = {
    name.replace("_", " "): domain
    for name, domain in pairs(
        "real_numbers=bb:R reals=bb:R real_number=bb:R real=bb:R real_values=bb:R integers=bb:Z "
        "integer=bb:Z integral_values=bb:Z rational_numbers=bb:Q rationals=bb:Q rational=bb:Q "
        "rational_number=bb:Q complex_numbers=bb:C natural_numbers=bb:N natural_number=bb:N "
        "positive_integers=bb:Z^+ positive_integer=bb:Z^+ negative_integers=bb:Z^- "
        "positive_real_numbers=bb:R^+ positive_reals=bb:R^+ positive_real_number=bb:R^+ "
        "negative_real_numbers=bb:R^-"
    ).items()
}
_SETS_IN_WORDS = "|".join(sorted(_DOMAINS, key=len, reverse=True))
_ALL = re.compile(rf"(?:all |the set of (?:all )?|any |every )?({_SETS_IN_WORDS})( .*)?")
_BEYOND = {
    "greater than or equal to": "ge", "less than or equal to": "le", "greater than": ">",
    "more than": ">", "larger than": ">", "less than": "<", "smaller than": "<",
    "at least": "ge", "at most": "le",
}  # fmt: skip
_SUCH = re.compile(
    rf"(?: except(?: for)? | other than )(?P<but>.+)|(?: ([a-z]))?(?: such that| with)? ?"
    rf"(?P<sign>{'|'.join(sorted(_BEYOND, key=len, reverse=True))}) (?P<end>.+)| (?P<own>[a-z]"
    rf" (?:<|>|\\le|\\ge|\\ne) .+)"
)
_MEMBER = r"(\\?[A-Za-z](?: , [A-Za-z])*)"
_QUANTIFIER = re.compile(
    rf"(?: [,;])?(?: \()?(?: and)?"
    rf"(?: (?:for|with|where|when|and)(?: (?P<how>all|any|every|each|some|no|an arbitrary"
    rf"|arbitrary))?| (?P<every>\\forall)| ,| \()"
    rf"(?: (?P<domain>{_SETS_IN_WORDS}))?(?: values of)? {_MEMBER}"
    rf"(?: \\in (?P<set>bb:[A-Z](?: [_^] (?:\{{ [^}}]* \}}|[^ ]+))?|[RZNQC])| (?:is|are) (?:an?"
    rf" |any )?(?:arbitrary )?(?P<is>{_SETS_IN_WORDS}|arbitrary|constant))?"
    rf"(?: \))?$"
)
_TIME = re.compile(r"(\d{1,2})(?: : (\d\d))?(?: (?:([ap]) \. ?m(?: \.)?|([ap])m))?")
_YEAR = (
    "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug"
    "|september sep sept|october oct|november nov|december dec"
)
_MONTHS = {
    name: number
    for number, spellings in enumerate(_YEAR.split("|"), 1)
    for name in spellings.split()
}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_DATE = re.compile(
    rf"(?P<m1>{_MONTH}) (?P<d1>\d\d?)(?: th| st| nd| rd)?(?: , (?P<y1>\d{{4}}))?"
    rf"|(?P<d2>\d\d?)(?: th| st| nd| rd)? (?:of )?(?P<m2>{_MONTH})(?: ,)?(?: (?P<y2>\d{{4}}))?"
    r"|(?P<y3>\d{4}) - (?P<m3>\d\d) - (?P<d3>\d\d)"
)
_DAYS = {
    day[:3]: day
    for day in ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
}
_CHOICE = re.compile(
    r"(?:(?:option|choice|answer) (?:: )?)?(?:\( ([A-Ja-j]) \)|([A-Ja-j]) [).:]|([A-Ja-j]))(?:"
    r" [.:])?( .+)?"
)
_OPERATION = re.compile(
    r" (?:[+=/*^_<>?&!:;|]|\\(?:approx|ldots|cdot|times|le|ge|to|square|pm)(?![a-z]))"
)
_ORDINAL = re.compile(
    r"(\d*(?:(?<!1)1(?= st)|(?<!1)2(?= nd)|(?<!1)3(?= rd)|(?:1[123]|[04-9])(?= th))) (?:st|nd"
    r"|rd|th)"
)


class Text:
    """Tokens and their text, without the braces that only group one token."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.places = [
            place
            for place, token in enumerate(tokens)
            if not (token == OPEN and tokens[place + 2 : place + 3] == (CLOSE,))
            and not (token == CLOSE and place > 1 and tokens[place - 2] == OPEN)
        ]
        self.text = canonical(tuple(tokens[place] for place in self.places))

    def first(self, count: int) -> Tokens:
        """Return the tokens of so many words of the text, with their braces."""
        return self.tokens[: self._end(count)]

    def rest(self, count: int) -> Tokens:
        """Return the tokens after so many words of the text."""
        return self.tokens[self._end(count) :]

    def last(self, text: str) -> Tokens:
        """Return the tokens of the text's end."""
        return self.rest(len(self.places) - len(text.split()))

    def after(self, matched: str) -> Tokens:
        """Return the tokens after the matched start of the text, which ends in a space."""
        return self.rest(matched.count(" "))

    def before(self, start: int) -> Tokens:
        """Return the tokens before a place in the text, which is a space."""
        return self.first(self.text[:start].count(" ") + 1)

    def _end(self, count: int) -> int:
        if count <= 0:
            return 0
        end = self.places[count - 1] + 1
        is_group = end < len(self.tokens) and self.tokens[end] == CLOSE and end > 1
        return end + (is_group and self.tokens[end - 2] == OPEN)


def _read(tokens: Tokens) -> Node:
    """Return the first phrase that reads all of the tokens, else mathematics, else the words."""
    whole = Text(tokens)
    for phrase in _PHRASES:
        node = phrase(whole.text, whole)
        if node is not None:
            return node
    try:
        if all(token.kind in WORDS for token in tokens):
            return Node("phrase", (), _SYNONYMS.get(whole.text, whole.text))
        tree = parse(tokens)
        if (
            tree.kind != "matrix"
            and tokens[0].text == "["
            and tokens[-1].text == "]"
            and len(_split(tokens[1:-1], strict=True)) == 1
        ):
            # A list of one, not a formula in brackets.
            tree = Node("tuple", (tree,), "[]")
        _check_words(tree, is_whole=True)
        return tree
    except Unparsable:
        if not any(token.kind in WORDS for token in tokens):
            raise
        return Node("phrase", (), whole.text)


def _check_words(node: Node, *, is_whole: bool = False) -> None:
    """Refuse labels anywhere but as a side of an equation or an element."""
    for part in node.args:
        is_side = node.kind in ("relation", "list", "set") or (
            node.kind == "tuple" and node.name == "row"
        )
        if part.kind == "label" and not is_side:
            raise Unparsable("words among factors")
        _check_words(part)
    if is_whole and node.kind == "label":
        raise Unparsable("words")


def _tried(tokens: Tokens) -> Node | None:
    """Read tokens; return None if there are none, or if that fails."""
    if not tokens:
        return None
    try:
        node = _read(tokens)
    except Unparsable:
        return None
    return node


def _framed(text: str, whole: Text) -> Node | None:
    """Read `The answer is 7`, `x = 4 is the only solution`, `7 because …`."""
    if match := _START.match(text):
        return _tried(whole.after(match[0]))
    if (match := _END.search(text)) and match.start():
        return _tried(whole.before(match.start()))
    if (
        (match := _REASON.search(text))
        and match.start()
        and not HEDGES & set(match[1].split()) - {"is", "are", "and"}
    ):
        return _tried(whole.before(match.start()))
    if (match := _APPROXIMATION.search(text)) and match.start():
        value = _tried(whole.before(match.start()))
        return value and Node("relation", (value, number(Fraction(match[1]), match[1])), "~")
    return None


def _labelled(text: str, whole: Text) -> Node | None:
    """Read `Maximum: 5`, `The area of triangle ABC is 5`."""
    match = _LABEL.match(text)
    if not match or len(match[1].split()) > 12:
        return None
    words = match[1].split()
    rest = whole.after(match[0])
    if all(len(word) < 2 for word in words) or HEDGES & set(words) or ":" in canonical(rest):
        return None
    value = _tried(rest)
    if value and value.kind == "relation" and set(words) <= FRAME:
        return value
    label = re.sub(r"^(?:the|a|an) ", "", " ".join(words))
    return value and Node("relation", (Node("label", (), label), value), "=")


def _piecewise(text: str, whole: Text) -> Node | None:
    """Read `1 if n is odd, 0 if n is even`."""
    parts = _split(whole.tokens)
    if len(parts) < 2 or any(
        [token.text.lower() for token in part].count("if") != 1 for part in parts
    ):
        return None
    rows = []
    for part in parts:
        place = [token.text.lower() for token in part].index("if")
        value, condition = _tried(part[:place]), _tried(part[place + 1 :])
        if value is None or condition is None:
            return None
        rows.append(Node("tuple", (value, condition), "row"))
    return Node("cases", tuple(rows))


def _several(text: str, whole: Text) -> Node | None:
    """Read `Minimum: 1, Maximum: 3` and `f(x) = 0 for all x, and f(x) = x for all x`, part by
    part.
    """
    parts = _split(whole.tokens)
    if len(parts) < 2:
        return None
    texts = [canonical(part) for part in parts]
    if not (
        all(_LABEL.match(part) for part in texts) or all(_QUANTIFIER.search(part) for part in texts)
    ):
        return None
    nodes = [_tried(part) for part in parts]
    if any(node is None or node.kind == "phrase" for node in nodes):
        return None
    known = tuple(node for node in nodes if node is not None)
    if (
        all(node.kind == "quantified" for node in known)
        and len({node.args[1] for node in known}) == 1
    ):
        return Node(
            "quantified",
            (Node("list", tuple(node.args[0] for node in known), ","), known[0].args[1]),
        )
    return Node("list", known, ",")


def _split(tokens: Tokens, *, strict: bool = False) -> list[Tokens]:
    """Return the parts between commas and `and` outside of brackets; none where brackets do not
    match.
    """
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in ("(", "[", "{", "{set")) - (token.text in (")", "]", "}", "}set"))
        if depth < 0 and strict:
            return []
        if depth == 0 and token.kind == "separator":
            if token.text == "or":
                return []
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts if part]


def _decided(text: str, whole: Text) -> Node | None:
    """Read `Yes, it is possible` as Yes; a word that takes it back keeps it from being read."""
    match = _DECISION.fullmatch(text)
    if not match:
        return None
    words = match[2].split()
    denies = match[1] in ("no", "false")
    is_reason = words[0] in ("because", "since") and not (HEDGES | {"yes", "no"}) & set(words) - {
        "is",
        "are",
        "and",
    }
    is_repeated = set(words) <= _SAFE | (_DENIALS if denies else frozenset())
    is_denied = bool(set(words) & _DENIALS) == denies
    return Node("phrase", (), match[1]) if is_reason or (is_repeated and is_denied) else None


def _described(text: str, whole: Text) -> Node | None:
    """Read `no solution`, `infinitely many`, `all real numbers except 0`."""
    if _NOTHING.fullmatch(text):
        return Node("set")
    if _INFINITE.fullmatch(text):
        return symbol("infinity")
    match = _ALL.fullmatch(text)
    if not match:
        return None
    domain = symbol(_DOMAINS[match[1]])
    if not match[2]:
        return domain
    such = _SUCH.fullmatch(match[2])
    if not such:
        return None
    if such["but"]:
        inside = _tried(whole.last(such["but"]))
        return inside and Node(
            "difference", (domain, Node("set", inside.args if inside.kind == "list" else (inside,)))
        )
    if such["own"]:
        condition = _tried(whole.last(such["own"]))
    else:
        end = _tried(whole.last(such["end"]))
        sign = _BEYOND[such["sign"]]
        condition = end and Node(
            "relation", (symbol("x"), end), {"ge": ">=", "le": "<="}.get(sign, sign)
        )
    if condition is None:
        return None
    variable = symbol(such["own"][0]) if such["own"] else symbol("x")
    if domain == REALS:
        return Node("builder", (variable, condition))
    return Node("builder", (Node("relation", (variable, domain), "in"), condition))


def _quantified(text: str, whole: Text) -> Node | None:
    r"""Read `2n for all n`, `k\pi where k is an integer`, `k\pi \ (k \in \mathbb{Z})`."""
    match = _QUANTIFIER.search(text)
    if not match or not match.start():
        return None
    named = match["set"] or match["is"] or match["domain"]
    if not (named or match["how"] or match["every"]):
        return None
    statement = _tried(whole.before(match.start()))
    if statement is None:
        return None
    domain = match["set"].replace(" ", "").replace("{", "").replace("}", "") if match["set"] else ""
    domain = domain if not domain or domain.startswith("bb:") else f"bb:{domain}"
    domain = domain or _DOMAINS.get(match["is"] or match["domain"] or "", "any")
    if match["how"] in ("some", "no"):
        domain = match["how"]
    letters = tuple(symbol(letter.lstrip("\\")) for letter in match[4].split(" , "))
    variable = letters[0] if len(letters) == 1 else Node("tuple", letters, "()")
    if not {letter.name for letter in letters} <= free_symbols(statement) and domain != "bb:Z":
        return statement if domain not in ("some", "no") and not free_symbols(statement) else None
    return Node("quantified", (statement, Node("relation", (variable, symbol(domain)), "in")))


def _timed(text: str, whole: Text) -> Node | None:
    """Read `3:45 p.m.`, `noon`, `March 5, 2024`, `Mon`."""
    if text in ("noon", "12 : 00 noon", "midnight"):
        return Node("time", (), "12:00 p" if "noon" in text else "12:00 a")
    if (match := _TIME.fullmatch(text.lower())) and (
        match[3] or match[4] or (match[2] and match[2][0] == "0")
    ):
        hour, half = int(match[1]), match[3] or match[4] or ""
        if half and hour > 12:
            return None
        if hour > 12:
            hour, half = hour - 12, "p"
        return Node("time", (), f"{hour}:{match[2] or '00'} {half}".strip())
    if match := _DATE.fullmatch(text):
        year, month, day = (
            next((match[f"{part}{n}"] for n in "123" if match[f"{part}{n}"]), "") for part in "ymd"
        )
        return Node("date", (), f"{year}-{_MONTHS.get(month) or int(month)}-{int(day)}")
    return Node("phrase", (), _DAYS[text]) if text in _DAYS else None


def _chosen(text: str, whole: Text) -> Node | None:
    """Read `(B)`, `Option B`, `(B) 12`."""
    match = _CHOICE.fullmatch(text)
    if not match:
        return None
    letter = next(filter(None, match.groups()[:3]))
    if match[4]:
        is_marked = match[2] or (match[1] and not match[4].startswith(" ("))
        if not is_marked or letter.islower() or _OPERATION.match(match[4]):
            return None
        rest = _tried(whole.last(match[4]))
        is_value = rest is not None and rest.kind not in ("phrase", "list", "choice")
        is_words = (
            rest is not None
            and rest.kind == "phrase"
            and not HEDGES & set(rest.name.split())
            and not re.search(r"\b[A-J]\b", rest.name)
        )
        return (
            Node("choice", (rest,), letter.upper())
            if rest is not None and (is_value or is_words)
            else None
        )
    return Node("choice", (), letter.upper()) if not match[3] or text != match[3] else None


def _ordinal(text: str, whole: Text) -> Node | None:
    """Read `12th`, `12^{th}`."""
    match = _ORDINAL.fullmatch(text.replace("^ ", "").replace("{ ", "").replace(" }", ""))
    return number(int(match[1]), match[1]) if match else None


_SYNONYMS = {
    "primes": "prime numbers",
    "even numbers": "even integers",
    "odd numbers": "odd integers",
}


def _with_article(text: str, whole: Text) -> Node | None:
    """Read `an ellipse`, `all even integers`: an article or `all` before words only."""
    match = re.match(r"(?:the|an?|all) (?=[a-z]{3})", text)
    if match is None or not all(token.kind in (*WORDS, "letter") for token in whole.tokens):
        return None
    return _tried(whole.after(match[0]))


_PHRASES: tuple[Callable[[str, Text], Node | None], ...] = (
    _chosen, _ordinal, _timed, _described, _decided, _framed, _piecewise, _several,
    _quantified, _labelled, _with_article,
)  # fmt: skip
