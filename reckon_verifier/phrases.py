r"""Read an answer's text as a tree: known phrases, such as `the answer is 7`, and mathematics.

Each rule for a phrase must match the whole text, and leaves out only words of its own list. A text
with any other word becomes a phrase node, which equals only the same words.

The rules (`_PHRASES`) are functions `rule(text, tokens)`. `text` is the canonical text of `tokens`,
with a space between any two tokens (`the area is 2 \pi`, `f ( x ) = 3`): the number of words in a
part of this text is therefore the number of its tokens. A rule returns None if it does not match.
"""

import contextlib
import re
from collections.abc import Callable
from fractions import Fraction

from reckon_verifier.grammar import parse
from reckon_verifier.tokens import END, WORDS, Token, canonical, tokenize
from reckon_verifier.tree import (
    Node,
    TooHard,
    Unparsable,
    free_symbols,
    names,
    nodes,
    number,
    pairs,
    remembered,
    symbol,
)
from reckon_verifier.words import HEDGES, HYPHEN, SIGNS, SPELLED, spelled_number

Tokens = tuple[Token, ...]


@remembered(8192)
def read(text: str) -> Node:
    """Return the tree of an answer: `The answer is 7.` -> the number 7.

    Raises:
        Unparsable: there is a character that no rule reads, or neither words nor mathematics.
        TooHard: a limit is passed.
    """
    # Numbers in words first, "three quarters" -> "3 quarters", then words for signs, "3 / 4".
    tokens = tokenize(HYPHEN.sub(r"\1 ", text.strip()))
    while tokens and tokens[-1].text == ".":
        tokens = tokens[:-1]
    in_words = canonical(tokens)
    tokens = _rewritten(tokens, SPELLED, spelled_number)
    # `2 and 3 quarters`: two and three quarters, or two numbers.
    if _MIXED.search(f"{in_words} | {canonical(tokens)}"):
        raise Unparsable("an integer and a fraction in words")
    tokens = _rewritten(tokens, _SIGN, lambda match: SIGNS[match[0]])
    if not tokens:
        raise Unparsable("nothing is left")
    try:
        return _read(tokens)
    except RecursionError as error:
        raise TooHard("phrases inside one another") from error


def _rewritten(
    tokens: Tokens, pattern: re.Pattern[str], written: Callable[[re.Match[str]], str | None]
) -> Tokens:
    """Replace each match of `pattern` in the canonical text by number and operator tokens.

    `written` returns the text of these tokens ("/4" for "quarters"), or None to keep the words.
    """
    text = canonical(tokens)
    new: list[Token] = []
    end = 0
    for match in pattern.finditer(text):
        if pieces := written(match):
            # The number of spaces before a place is the number of tokens before it.
            new += tokens[end : text[: match.start()].count(" ")]
            signs = re.findall(r"\d+|\D", pieces)
            new += [Token("number" if sign.isdigit() else "operator", sign) for sign in signs]
            end = text[: match.end()].count(" ") + 1
    return (*new, *tokens[end:])


# A word of `SIGNS` after a number: `3 plus 4`, `3 quarters`. `7 squared`, but not `2/3 squared`;
# "one third", but not "twenty third".
_SIGN = re.compile(
    r"(?<=\d )(?:(?:(?<=^\d )|(?<=^\d\d ))(?:squared|cubed)$|(?:plus|minus)(?= \d)"
    r"|(?:(?:halve|third|quarter|fourth|fifth|sixth|eighth|tenth)s|(?:hundred|thousand|million)ths"
    r"|(?:(?<=^1 )|(?<= 1 ))(?:half|third|quarter|fifth|tenth))(?![^ ]))"
)

# `2 and 3 quarters` may be one number or two; 203/4 or 200 3/4 is `two hundred and three quarters`.
_MIXED = re.compile(
    r"(?<![^ ])(?:\d+ and (?:\d+|an?)|hundred and(?: [a-z]+){1,9}) "
    r"(?:hal(?:f|ves)|thirds?|quarters?|fourths|fifths?|sixths|eighths|tenths?"
    r"|(?:hundred|thousand|million)ths)"
)

# The patterns below match canonical text. Words before an answer: `the answer is : 5`, `only 5`.
_START = re.compile(
    r"(?:= |(?:only|exactly|just) (?=[^ ])"
    r"|(?:the )?(?:final |correct |required )?(?:answer|result) (?:is (?:: )?|: |="
    r" )(?:(?:simply|equal to) )?)"
)
_APPROXIMATION = re.compile(
    r" \( (?:(?:approximately|about|roughly) |\\approx )([-\d.]+)(?: units)? \)$"
)
# Words and a sign before a value: `maximum : 5`, `the area is 5`.
_LABEL = re.compile(r"((?:[^\W\d_]+ )+)(?::|is|are|equals|is equal to) (?=\S)")
_DECISION = re.compile(r"(yes|no|true|false) (?:[,:;] )?((?:it|this|that|they|we|there|such) .*)")
_EQUATION = names("the equation equations of line curve solution solutions answer answers")
_SAFE = names(
    "it this that they we there such is are does do can has have exists exist holds possible the "
    "true correct an a"
)
_DENIALS = names("not cannot impossible no n't")
# `no solution`, `there is no such x`, `none exist`
_NOTHING = re.compile(
    r"(?:there (?:is|are|exists?) )?no (?:solutions?|such [a-z]+)(?: exists?)?"
    r"|none(?: exists?)?"
)
# The symbol of a set of numbers in words: "positive integers" is "bb:Z^+".
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
_ALL = re.compile(rf"(?:all |the set of (?:all )?|any |every )?({_SETS_IN_WORDS})")
_MEMBER = r"(\\?[A-Za-z](?: , [A-Za-z])*)"
# `2 n for all n`, `k \pi where k is an integer`, `k \pi ( k \in bb:Z )`.
_QUANTIFIER = re.compile(
    rf"(?: [,;])?(?: \()?(?: and)?"
    rf"(?: (?:for|with|where|when|and)(?: (?P<how>all|any|every|each|some|no|an arbitrary"
    rf"|arbitrary))?| (?P<every>\\forall)| ,| \()"
    # "integers n, m": group 4 is the letters.
    rf"(?: (?P<domain>{_SETS_IN_WORDS}))?(?: values of)? {_MEMBER}"
    rf"(?: \\in (?P<set>bb:[A-Z](?: [_^] (?:\{{ [^}}]* \}}|[^ ]+))?|[RZNQC])| (?:is|are) (?:an?"
    rf" |any )?(?:arbitrary )?(?P<is>{_SETS_IN_WORDS}|arbitrary|constant))?"
    rf"(?: \))?$"
)
# A date, not a difference: `2024-03-05` is no 2016.
_DATE = re.compile(r"(?<![^ ])\d{4} - \d\d - \d\d(?![^ ])")
# `( B )`, `option B`, `B . 12`, `b`
_CHOICE = re.compile(
    r"(?:(?:option|choice|answer) (?:: )?)?(?:\( ([A-Ja-j]) \)|([A-Ja-j]) [).:]|([A-Ja-j]))(?:"
    r" [.:])?( .+)?"
)
# A sign with which the text after a letter is no option: `B + 1`.
_OPERATION = re.compile(
    r" (?:[+=/*^_<>?&!:;|]|\\(?:approx|ldots|cdot|times|le|ge|to|square|pm)(?![a-z]))"
)


def _read(tokens: Tokens) -> Node:
    """Return the tree of tokens: by the first phrase that matches, else as mathematics or words."""
    text = canonical(tokens)
    if _DATE.search(text):
        raise Unparsable("a date")
    for phrase in _PHRASES:
        node = phrase(text, tokens)
        if node is not None:
            return node
    are_words = [token.kind in WORDS for token in tokens]
    # Words only: one spelling for synonyms, such as "primes" and "prime numbers".
    if all(are_words):
        return Node("phrase", (), _SYNONYM.sub(lambda match: _SYNONYMS[match[0]], text))
    try:
        tree = parse(tokens)
        _check_words(tree)
    except Unparsable:
        if not any(are_words):
            raise
        # A word after a number may be a unit, whose case counts: `2 GPa` is not `2 GPA`.
        words = (
            token.text if last.kind == "number" else canonical((token,))
            for last, token in zip((END, *tokens[:-1]), tokens, strict=True)
        )
        return Node("phrase", (), " ".join(words))
    return tree


_SYNONYMS = {
    "primes": "prime numbers",
    "even numbers": "even integers",
    "odd numbers": "odd integers",
}
_SYNONYM = re.compile(rf"(?<![^ ])(?:{'|'.join(_SYNONYMS)})$")


def _check_words(tree: Node) -> None:
    """Raise `Unparsable` for a tree with labels (words) inside mathematics: `2 · odd`.

    A label may be a side of a relation, or an element of a list, a set or a row (the tuple node of
    a row in cases). A tree that is one label, `(odd)`, is refused too: it has no mathematics, and
    `_read` makes it a phrase.
    """
    strict = (node for node in nodes(tree) if node.kind not in ("relation", "list", "set"))
    children = [child for node in strict if node.name != "row" for child in node.args]
    if any(node.kind == "label" for node in (tree, *children)):
        raise Unparsable("words among factors")


def _tried(tokens: Tokens) -> Node | None:
    """Return the tree of tokens, or None if there are none or they cannot be read."""
    with contextlib.suppress(Unparsable):
        return _read(tokens) if tokens else None
    return None


def _first(tokens: Tokens, text: str) -> Tokens:
    """Return the leading tokens with the canonical text `text`: one token for each word."""
    return tokens[: len(text.split())]


def _last(tokens: Tokens, text: str) -> Tokens:
    """Return the trailing tokens with the canonical text `text`: one token for each word."""
    return tokens[len(tokens) - len(text.split()) :]


def _framed(text: str, tokens: Tokens) -> Node | None:
    r"""Read the answer in `The answer is 7`, and `\pi (approximately 3.14)` as `\pi ≈ 3.14`.

    Return the tree, or None if the text is neither or its answer cannot be read.
    """
    if match := _START.match(text):
        return _tried(_last(tokens, text[match.end() :]))
    match = _APPROXIMATION.search(text)
    value = _tried(_first(tokens, text[: match.start()])) if match and match.start() else None
    if not match or not value:
        return None
    return Node("relation", (value, number(Fraction(match[1]), match[1])), "~")


def _labelled(text: str, tokens: Tokens) -> Node | None:
    """Read `Maximum: 5` as the equation maximum = 5, with a label on its left side.

    Also `The area of triangle ABC is 5`. "The equation is" and the like before an equation are left
    out. Return None for other texts.
    """
    match = _LABEL.match(text)
    words = match[1].split() if match else []
    rest = text[match.end() :] if match else ""
    # `x is 5` is no label, nor are words that change the value; `:` in the rest begins another
    # label.
    if all(len(word) < 2 for word in words) or HEDGES & {*words} or ":" in rest or len(words) > 12:
        return None
    value = _tried(_last(tokens, rest))
    # `The equation is y = x` needs no label, and `the area is x = 5` has two names for one value.
    if value and value.kind == "relation":
        return value if {*words} <= _EQUATION else None
    label = Node("label", (), re.sub(r"^(?:the|a|an) ", "", " ".join(words)))
    return value and Node("relation", (label, value), "=")


def _several(text: str, tokens: Tokens) -> Node | None:
    """Read `Minimum: 1, Maximum: 3` as a list of its parts.

    Also `f(x) = 0 for all x, and f(x) = x for all x`, as one statement for all x, about a list.
    None if a part has neither a label nor a quantifier, or cannot be read.
    """
    parts = _split(tokens)
    texts = [canonical(part) for part in parts]
    # `minimum : 1, …`, or `… for all x, …`
    if len(parts) < 2 or not (all(map(_LABEL.match, texts)) or all(map(_QUANTIFIER.search, texts))):
        return None
    known = tuple(node for node in map(_tried, parts) if node and node.kind != "phrase")
    if len(known) < len(parts):
        return None
    # Statements for all values of the same letter become one, about a list.
    if all(node.kind == "quantified" and node.args[1] == known[0].args[1] for node in known):
        statements = Node("list", tuple(node.args[0] for node in known), ",")
        return Node("quantified", (statements, known[0].args[1]))
    return Node("list", known, ",")


def _split(tokens: Tokens) -> list[Tokens]:
    """Return the parts between separators outside brackets.

    The tokens of `f(1, 2), 3 and 4` have the parts `f(1, 2)`, `3` and `4`. If a separator outside
    brackets is `or`, return an empty list: the caller reads parts that hold together, and `or`
    gives alternatives.
    """
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in ("(", "[", "{", "{set")) - (token.text in (")", "]", "}", "}set"))
        if depth == 0 and token.kind == "separator":
            if token.text == "or":
                return []
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts if part]


def _decided(text: str, tokens: Tokens) -> Node | None:
    """Read `Yes, it is possible` as the phrase node "yes", and `No, it is not` as "no".

    Return None for other texts, and if the words after yes or no may contradict it: `Yes, it is
    not`.
    """
    match = _DECISION.fullmatch(text)
    if not match:
        return None
    words = {*match[2].split()}
    denies = match[1] in ("no", "false")
    # Exactly one denial after no or false, none after yes or true; two may cancel: `No, it is not
    # impossible`.
    num_denials = sum(word in _DENIALS for word in match[2].split())
    is_consistent = words <= _SAFE | _DENIALS and num_denials == denies
    return Node("phrase", (), match[1]) if is_consistent else None


def _described(text: str, tokens: Tokens) -> Node | None:
    """Read a set in words: `no solution` is ∅, `all integers` is the symbol of ℤ, bb:Z.

    Return None for other texts.
    """
    if _NOTHING.fullmatch(text):
        return Node("set")
    match = _ALL.fullmatch(text)
    # A singular without "all" or "any" before it is one element, and no set: `integer`.
    if match and match[0] == match[1] and not text.endswith("s"):
        return None
    return symbol(_DOMAINS[match[1]]) if match else None


def _quantified(text: str, tokens: Tokens) -> Node | None:
    r"""Read `k\pi where k is an integer` as a quantified node: (k\pi, k ∈ ℤ).

    Also `2n for all n`, whose set is "any", and `k\pi \ (k \in \mathbb{Z})`. Return None if there
    is no quantifier at the end, or the statement before it cannot be read.
    """
    match = _QUANTIFIER.search(text)
    # A letter after a comma, without any of these, is the last element of a list.
    if not match or not any(match.group("set", "is", "domain", "how", "every")):
        return None
    statement = _tried(_first(tokens, text[: match.start()]))
    if statement is None:
        return None
    domain = _DOMAINS.get(match["is"] or match["domain"], "any")
    if match["set"]:
        # "bb:Z _ { > 0 }" -> "bb:Z_>0"; a space for each token before the set.
        start = text[: match.start("set")].count(" ")
        named = _tried(tokens[start : start + len(match["set"].split())])
        if named is None:
            return None
        domain = f"bb:{named.name.removeprefix('bb:')}"
    if match["how"] in ("some", "no"):
        domain = match["how"]
    letters = tuple(symbol(letter.lstrip("\\")) for letter in match[4].split(" , "))
    variable = letters[0] if len(letters) == 1 else Node("tuple", letters, "()")
    # `5 for all x` lacks the quantifier's letter.
    if not {letter.name for letter in letters} <= free_symbols(statement):
        return statement if domain == "any" and not free_symbols(statement) else None
    return Node("quantified", (statement, Node("relation", (variable, symbol(domain)), "in")))


def _chosen(text: str, tokens: Tokens) -> Node | None:
    """Read `(B)` or `Option B` as a choice, and `(B) 12` as a choice with its value.

    Return None for other texts, and for a choice of several letters or with a hedge.
    """
    match = _CHOICE.fullmatch(text)
    if not match:
        return None
    letter = match[1] or match[2] or match[3]
    if not match[4]:
        # A bare letter, `B`, may be a variable and stays a symbol: `compare_choice` decides.
        return Node("choice", (), letter.upper()) if text != match[3] else None
    # `( B ) ( x + 1 )` may be a product: the letter must have a mark, and the text be one value.
    is_marked = match[2] or (match[1] and not match[4].startswith(" ("))
    if not is_marked or letter.islower() or _OPERATION.match(match[4]):
        return None
    rest = _tried(_last(tokens, match[4]))
    if rest is None or rest.kind in ("list", "choice"):
        return None
    # `(A) 5 (B)`, `(A) B` and `(A) \{B, C\}` name several letters.
    has_letters = re.search(r"\( [A-J] \)", match[4]) or any(
        _LETTERS.fullmatch(part.name) for part in nodes(rest)
    )
    is_hedged = has_letters or (rest.kind == "phrase" and _HEDGED.search(rest.name))
    return None if is_hedged else Node("choice", (rest,), letter.upper())


_LETTERS = re.compile("[A-J]{1,4}")
_HEDGED = re.compile(rf"\b(?:[A-J]|{'|'.join(HEDGES)})\b")


def _with_article(text: str, tokens: Tokens) -> Node | None:
    """Read `an ellipse` as `ellipse`: leave out an article before words only."""
    is_words = all(token.kind in (*WORDS, "letter") for token in tokens)
    has_article = is_words and re.match(r"(?:the|an?) (?=[a-z]{3})", text)
    return _tried(tokens[1:]) if has_article else None


# In order: the first rule that does not return None reads the text.
_PHRASES: tuple[Callable[[str, Tokens], Node | None], ...] = (
    _chosen, _described, _decided, _framed, _several,
    _quantified, _labelled, _with_article,
)  # fmt: skip
