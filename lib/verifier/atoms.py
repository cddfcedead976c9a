r"""The parser's small parts: numbers, names, groups, functions, and what is attached to them."""

from collections.abc import Callable
from fractions import Fraction

from lib.verifier.normalize import END, Token
from lib.verifier.tree import MAX_DIGITS, Node, TooHard, Unparsable, call, number, symbol
from lib.verifier.vocabulary import ACCENTS, ALIASES, FUNCTIONS, GREEK, is_unit, names, number_word

BRACKETS = {"(": (")", "]"), "[": ("]", ")"), "{set": ("}set",), "langle": ("rangle",)}
"""Opening brackets, and what may close each; "]" closes "(" in a half-open interval."""

_MATRICES = names("matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array")
_CALCULUS = names("sum prod int lim oint iint")
_SYMBOLS = {"infty": "infinity", "i": "i", "e": "e", "imath": "i", "prime": "prime"}
_ROUNDINGS = {"lfloor": ("floor", "rfloor"), "lceil": ("ceil", "rceil")}
_RECIPROCAL = names("sin cos tan cot sec csc")


class Atoms:
    """A position in a list of tokens, and a method for each small part.

    `statement`, `product`, `signed` and `power` are the parser's (`lib.verifier.parse`), which
    derives from this class.
    """

    statement: Callable[..., Node]
    product: Callable[[], Node]
    signed: Callable[[], Node]
    signed_product: Callable[[], Node]
    element: Callable[[], Node]

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0
        self.bars = 0
        self.in_set = False
        self.integrals = 0

    @property
    def peek(self) -> Token:
        """The next token."""
        return self.tokens[self.position]

    def ahead(self, count: int) -> Token:
        """The token `count` after the next; the end token beyond the end."""
        return self.tokens[min(self.position + count, len(self.tokens) - 1)]

    def next(self) -> Token:
        """The next token, taken."""
        token = self.tokens[self.position]
        self.position += token is not END
        return token

    def take(self, *texts: str) -> Token | None:
        """The next token if it is an operator, command or separator with one of these texts."""
        token = self.peek
        if token.text in texts and token.kind in ("operator", "command", "separator"):
            return self.next()
        return None

    def expect(self, *texts: str) -> Token:
        """Take one of these.

        Raises:
            Unparsable: something else is there.
        """
        token = self.take(*texts)
        if token is None:
            raise Unparsable(f"expected {texts[0]!r}, met {self.peek.text!r}")
        return token

    def starts_atom(self) -> bool:
        """Whether the next token begins a factor."""
        kind, text = self.peek
        if kind == "operator" and text == "|":
            return self.bars == 0 and not self.in_set
        return (
            kind in ("number", "letter")
            or (kind == "operator" and (text in BRACKETS or text == "{"))
            or (kind == "command" and (text in _KNOWN or text.startswith("mathbb")))
        )

    def atom(self) -> Node:
        """One number, name, group or function application.

        Raises:
            Unparsable: none of these.
        """
        token = self.next()
        if token.kind == "number":
            repeats = self.peek.text == "overline" and self.ahead(1).text == "{"
            return self._repeating(token.text) if repeats else parse_number(token.text)
        if token.kind == "letter":
            return self._name(token.text)
        if token.kind == "text":
            return Node("text", (), token.text)
        if token.kind == "operator" and token.text == "|":
            return self._absolute()
        if token.kind == "operator" and (token.text in BRACKETS or token.text == "{"):
            return self._group(token.text)
        if token.kind == "command":
            return self._command(ALIASES.get(token.text, token.text))
        raise Unparsable(f"unexpected {token.text!r}" if token.text else "unexpected end")

    def power(self) -> Node:
        """An atom with exponents, subscripts, factorials, percent and degree signs after it."""
        return self._postfix(self.atom())

    def _repeating(self, literal: str) -> Node:
        r"""`0.1\overline{6}`: digits, then digits that repeat for ever."""
        self.next()
        repeated, plain = self.atom(), parse_number(literal)
        digits, places = repeated.name, len(literal.partition(".")[2])
        if "." not in literal or not digits.isdigit():
            raise Unparsable("a bar over something that is no decimal")
        tail = repeated.value / ((10 ** len(digits) - 1) * 10**places)
        return number(plain.value + tail)

    def _name(self, letter: str) -> Node:
        braced = self.peek.text == "{"
        applies = self.ahead(braced).text == "("
        if applies and letter in "fghFGHPQNT":
            return call(letter, *self._arguments())
        return symbol(letter)

    def _arguments(self) -> tuple[Node, ...]:
        """What is in the next group, split at commas."""
        inside = self.atom()
        return inside.args if inside.kind in ("list", "tuple", "set") else (inside,)

    def _digit(self, *, last: bool) -> Node:
        r"""An argument of `\frac`: of an unbraced number, one digit, or all of it when `last`."""
        token = self.peek
        if token.kind == "number" and not last and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.position] = token._replace(text=token.text[1:])
            return number(int(token.text[0]), token.text[0])
        return self.atom()

    def _command(self, name: str) -> Node:
        if name in ("frac", "binomial"):
            return self._two_arguments(name)
        if name in _SYMBOLS:
            return symbol(_SYMBOLS[name])
        if name in _ROUNDINGS:
            function, closing = _ROUNDINGS[name]
            inside = self.statement(closing=(closing,))
            self.expect(closing)
            return call(function, inside)
        if name == "sqrt" and self.take("["):
            index = self.statement(closing=("]",))
            self.expect("]")
            return Node("root", (index, self.atom()))
        if name == "sqrt" and self.peek.text not in ("^", "_"):
            return Node("root", (number(2), self.atom()))
        if name in _CALCULUS:
            return self._calculus(name)
        if name == "begin":
            return self._environment()
        if name in ("langle", "{set"):
            return self._group(name)
        if name == "emptyset":
            return Node("set")
        if name in FUNCTIONS:
            return self._function(name)
        if name in ACCENTS:
            return self._accented(name)
        if name in ("angle", "measuredangle", "triangle", "square"):
            # The mark and the letters after it are one name, `\angle ABC`.
            letters = []
            while self.peek.kind == "letter":
                letters.append(self.next().text)
            return symbol(f"{name.removeprefix('measured')} {''.join(letters)}")
        if name in GREEK:
            if name == "Delta" and self.peek.kind == "letter":
                return symbol(f"Delta {self.next().text}")
            applies = name in ("Phi", "phi", "psi", "Psi") and self.peek.text == "("
            return call(name, *self._arguments()) if applies else symbol(name)
        if name.startswith("mathbb"):
            return symbol("reals" if name == "mathbbR" else name)
        raise Unparsable(f"unknown command \\{name}")

    def _two_arguments(self, name: str) -> Node:
        braced = self.peek.text == "{"
        above = self._digit(last=False)
        if name == "binomial":
            return call(name, above, self._digit(last=True))
        # `\frac{a} / b` is what some models write.
        below = self.power() if self.take("/") else self._digit(last=braced)
        return Node("quotient", (above, below))

    def _accented(self, name: str) -> Node:
        inside = self.atom()
        plain = name == "underline" or (
            name in ("vec", "overrightarrow", "overline") and inside.kind != "number"
        )
        return inside if plain else symbol(f"{name}({spelled(inside)})")

    def _function(self, name: str) -> Node:
        r"""A function with its power, base and argument: `\sin^2 x`, `\log_2 8`, `\max(1, 2)`."""
        base = exponent = None
        while mark := self.take("^", "_"):
            if mark.text == "^":
                exponent = self._exponent()
            else:
                base = self.atom()
        if not self.starts_atom() and self.peek.text != "-":
            return symbol(name)
        operand = self._operand()
        if not operand:
            raise Unparsable("a function of nothing")
        if exponent is not None and exponent.value == -1 and name in _RECIPROCAL:
            return call(f"arc{name}", *operand)
        if base is None:
            applied = call(name, *operand)
        elif name == "log":
            applied = call(name, operand[0], base)
        else:
            applied = call(f"{name}_{spelled(base)}", *operand)
        return applied if exponent is None else Node("power", (applied, exponent))

    def _operand(self) -> tuple[Node, ...]:
        """A group with its items, or the factors up to the next sign, function or group."""
        if self.peek.text in ("(", "{", "[", "{set") and self.peek.kind == "operator":
            return self._arguments()
        factors = [self.signed() if self.peek.text == "-" else self.power()]
        while self.starts_atom() and not self._ends_operand():
            factors.append(self.power())
        return (factors[0] if len(factors) == 1 else Node("product", tuple(factors)),)

    def _ends_operand(self) -> bool:
        kind, text = self.peek
        is_differential = self.integrals and text == "d" and kind == "letter"
        return bool(is_differential) or text in (*"([{|", *FUNCTIONS, *ALIASES)

    def _calculus(self, name: str) -> Node:
        lower = upper = Node("list")
        while mark := self.take("^", "_"):
            if mark.text == "_":
                lower = self.atom()
            else:
                upper = self.atom()
        self.integrals += name == "int"
        body = self.product()
        self.integrals -= name == "int"
        return Node("calculus", (lower, upper, body), name)

    def _group(self, opening: str) -> Node:
        """The group that `opening` (already taken) begins."""
        outer, self.bars, self.in_set = (self.bars, self.in_set), 0, opening == "{set"
        closings = BRACKETS.get(opening, ("}",))
        inside = self.statement(closing=(*closings, *("mid", ":", "|") * self.in_set))
        if self.in_set and self.take("mid", "|", ":"):
            inside = Node("builder", (inside, self.statement(closing=closings)))
        self.bars, self.in_set = outer
        closing = self.expect(*closings).text
        if opening == "{":
            is_set = inside.kind == "list" and inside.name == ","
            return Node("set", inside.args) if is_set else inside
        if opening == "{set":
            items = inside.args if inside.kind == "list" else (inside,)
            return inside if inside.kind == "builder" else Node("set", items)
        if inside.kind == "list":
            return Node("tuple", inside.args, "<>" if opening == "langle" else opening + closing)
        if opening + closing in ("()", "[]", "langlerangle"):
            return inside
        raise Unparsable("a half-open bracket around one element")

    def _absolute(self) -> Node:
        """`|…|`, its first bar already taken."""
        self.take("|")
        self.bars += 1
        inside = self.statement(closing=("|",))
        self.expect("|")
        self.bars -= 1
        self.take("|")
        return call("abs", inside)

    def _environment(self) -> Node:
        r"""`\begin{name}` (already taken) up to its end: a matrix, or what a wrapper holds."""
        name = self._braced_letters().rstrip("*")
        if name == "array" and self.peek.text == "{":
            self._braced_letters()
        if name in _MATRICES:
            rows = tuple(Node("tuple", row, "row") for row in self._rows())
            inside = Node("matrix", rows, "matrix")
        else:
            raise Unparsable(f"environment {name}")
        self.expect("end")
        self._braced_letters()
        return call("det", inside) if name == "vmatrix" else inside

    def _braced_letters(self) -> str:
        """The name of an environment, or its columns."""
        letters = []
        self.expect("{")
        while not self.take("}"):
            if self.peek is END:
                raise Unparsable("environment without a name")
            letters.append(self.next().text)
        return "".join(letters)

    def _rows(self) -> list[tuple[Node, ...]]:
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
        while self.peek.text != "end":
            row.append(self.element())
            if self.take("&"):
                continue
            rows.append(tuple(row))
            row = []
            if not self.take("\\"):
                break
        return rows

    def _exponent(self) -> Node:
        """What is after `^`: a group, a number with its sign, or one atom."""
        if self.peek.text == "-" and self.peek.kind == "operator":
            return self.signed()
        base = self.atom()
        return self._postfix(base) if self.peek.text == "^" and base.kind == "number" else base

    def _postfix(self, node: Node) -> Node:
        """`node` with all that is attached to it."""
        while token := self.take("^", "_", "!", "%", "'", "degree", "circ"):
            if token.text == "^":
                node = self._raised(node)
            elif token.text == "_":
                node = self._lowered(node)
            elif token.text in ("degree", "circ"):
                node = self._degrees(node)
            elif token.text == "'":
                node = _primed(node)
            else:
                node = Node("factorial" if token.text == "!" else "percent", (node,))
        return node

    def _degrees(self, node: Node) -> Node:
        """An angle, or with C or F after it a temperature."""
        return Node("degree", (node,))

    def _raised(self, node: Node) -> Node:
        exponent = self._exponent()
        is_number = node.kind == "number"
        if exponent.kind == "symbol" and exponent.name in ("circ", "degree", "o" * is_number):
            return self._degrees(node)
        if exponent == symbol("prime"):
            return _primed(node)
        if node.kind == "symbol" and self.take("_"):
            node = self._lowered(node)
        return Node("power", (node, exponent))

    def _lowered(self, node: Node) -> Node:
        below = self.atom()
        if node.kind == "number" and below.kind in ("number", "text", "product"):
            return Node("base", (), node.name, below.value or number_word(spelled(below)))
        if node.kind not in ("symbol", "call"):
            raise Unparsable("a subscript on what is no name")
        return node._replace(name=f"{node.name}_{spelled(below)}")

    def with_unit(self, node: Node) -> Node:
        """`node` with the unit after it: words, powers, and `/` between words."""
        parts = [self.next().text]
        while True:
            following = self.ahead(1)
            is_word = following.kind == "text" or (
                following.kind == "letter" and is_unit(following.text)
            )
            if self.peek.kind == "text":
                parts.append(f" {self.next().text}")
            elif self.take("^"):
                parts.append(f"^{spelled(self._exponent()) or '?'}")
            elif is_word and (sign := self.take("/", "cdot", "*")):
                parts.append(("/" if sign.text == "/" else " ") + self.next().text)
            else:
                return Node("unit", (node,), "".join(parts))


def _primed(node: Node) -> Node:
    if node.kind not in ("symbol", "call"):
        raise Unparsable("a prime on what is no name")
    return node._replace(name=f"{node.name}'")


def parse_number(literal: str) -> Node:
    """The node of a number token.

    Raises:
        TooHard: too many digits.
    """
    exponent = literal.lower().partition("e")[2].lstrip("+-")
    if len(literal) > MAX_DIGITS or len(exponent) > 3:
        raise TooHard("digits of a literal")
    return number(Fraction(literal), literal)


def spelled(node: Node) -> str:
    """A name for a subscript or an accent: what it says, without spaces."""
    inside = ",".join(spelled(part) for part in node.args)
    return f"{node.name or node.kind}({inside})" if node.args else node.name


_KNOWN = FUNCTIONS | ALIASES.keys() | GREEK | ACCENTS | _CALCULUS | _SYMBOLS.keys()
_KNOWN |= _ROUNDINGS.keys() | names("frac binom dbinom tbinom begin emptyset angle measuredangle")
_KNOWN |= {"langle", "{set"}
