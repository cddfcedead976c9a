r"""Parse the factors of an expression: numbers, names, groups, functions, and marks after them.

`Atoms` is the lower half of the parser (`reckon_verifier.grammar` has the levels above a factor).
In `2\sin^2 x + \{1, 2\}` the atoms are `2`, `\sin^2 x` and `\{1, 2\}`.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from reckon_verifier.tokens import CURRENCIES, END, WORDS, Token
from reckon_verifier.tree import (
    FUNCTIONS,
    MAX_DEPTH,
    MAX_DIGITS,
    Node,
    TooHard,
    Unparsable,
    call,
    free_symbols,
    names,
    negated,
    nodes,
    number,
    spelled,
    substituted,
    symbol,
)
from reckon_verifier.words import MONEY, is_unit, parse_unit

BRACKETS = {
    "(": (")", "]"), "[": ("]", ")"), "{": ("}",), "{set": ("}set",), "langle": ("rangle",),
}  # fmt: skip
"""Each opening bracket, and the brackets that may close it: "]" closes "(" in `(0, 1]`."""

GREEK = names(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho "
    "sigma tau upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi "
    "Omega hbar ell aleph top dagger mho"
)
_MATRICES = names("pmatrix bmatrix Bmatrix vmatrix matrix smallmatrix array")
_CALCULUS = names("sum prod int lim oint iint")
_ROUNDINGS = {"lfloor": ("floor", "rfloor"), "lceil": ("ceil", "rceil")}
_OF_SEVERAL = names("max min gcd lcm")
_TRIGONOMETRIC = names("sin cos tan cot sec csc")
ACCENTS = names("vec hat tilde dot ddot overline overset overleftrightarrow")
_FIGURES = names("angle triangle square")
_ENDS_OPERAND = re.compile(rf"[(\[{{|]|d[a-z]|{'|'.join(FUNCTIONS)}")
r"""Tokens that end a function's argument without brackets: `\sin 2x \cos x`, `\ln x dx`."""
# Letters that are functions before a bracket: `f(x + 1)`; `x(x + 1)` is a product.
_FUNCTION_LETTERS = frozenset("fghFGHPQ")
_POSTFIXES = ("^", "_", "!", "%", "'", "''", "'''", "degree")


class Atoms:
    """A cursor in a sequence of tokens, and a method for each kind of atom.

    A method that parses begins at the next token, moves past the tokens of its atom, and returns
    their tree. The subclass `reckon_verifier.grammar.Parser` defines `statement`, `product`,
    `signed` and `element`.

    Attributes:
        tokens: all tokens, then the end token.
        position: index of the next token.
        depth: number of nested groups so far; see `deeper`.
        bars: number of open absolute values: inside them, `|` closes and never opens.
        in_set: whether the innermost group is a set. There, `|`, `:` and `mid` begin the condition.
    """

    statement: Callable[..., Node]
    product: Callable[[], Node]
    signed: Callable[[], Node]
    element: Callable[[], Node]

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self.tokens = [*tokens, END]
        self.position = 0
        self.depth = 0
        self.bars = 0
        self.in_set = False

    @property
    def peek(self) -> Token:
        """The next token."""
        return self.tokens[self.position]

    def ahead(self, count: int) -> Token:
        """Return the token that is `count` places after the next one, or the end token."""
        return self.tokens[min(self.position + count, len(self.tokens) - 1)]

    def next(self) -> Token:
        """Return the next token and move past it; at the end, return the end token every time."""
        token = self.tokens[self.position]
        self.position += token is not END
        return token

    def take(self, *texts: str) -> Token | None:
        """Return the next token and move past it if its text is in `texts`; else return None.

        Only signs (operators, commands, separators) are taken, no words or numbers.
        """
        token = self.peek
        if token.text in texts and token.kind in ("operator", "command", "separator"):
            return self.next()
        return None

    def expect(self, *texts: str) -> Token:
        """Return the next token and move past it, like `take`, but require it.

        Raises:
            Unparsable: the next token is no sign with one of these texts.
        """
        token = self.take(*texts)
        if token is None:
            raise Unparsable(f"expected {texts[0]!r}, met {self.peek.text!r}")
        return token

    def deeper(self) -> None:
        """Add 1 to `depth`; the caller subtracts it again after the group.

        Raises:
            TooHard: the nesting is deeper than `MAX_DEPTH`.
        """
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooHard(f"nested more than {MAX_DEPTH} deep")

    def starts_atom(self) -> bool:
        """Return True if the next token begins a factor, so that no sign means a product."""
        kind, text = self.peek
        # `|` begins an absolute value, except where it closes one, or begins a set's condition.
        if kind == "operator" and text in ("|", "‖"):
            return self.bars == 0 and not self.in_set
        return (
            kind in ("number", "letter", "name")
            or (kind == "operator" and text in BRACKETS)
            or (kind == "command" and text in _KNOWN)
        )

    def power(self) -> Node:
        """Parse an atom with the marks after it: `x_1^2`, `5!`, `10%`, `30°`."""
        return self._postfix(self.atom())

    def atom(self) -> Node:
        """Parse one number, name, group, or function call: `2`, `x`, `(a + b)`, `f(x)`.

        Raises:
            Unparsable: the next tokens are none of these.
        """
        self.deeper()
        node = self._atom(self.next())
        self.depth -= 1
        return node

    def _atom(self, token: Token) -> Node:
        """Parse an atom; its first token, `token`, is already taken."""
        kind, text = token
        if kind == "number":
            return parse_number(text)
        if kind == "letter":
            return self._applied(symbol(text))
        if kind in WORDS:
            return self._word(token)
        if kind == "operator" and text in ("|", "‖"):
            return self._absolute(text)
        if kind in ("operator", "command") and text in BRACKETS:
            return self._group(text)
        if kind == "command":
            return self._command(text)
        raise Unparsable(f"unexpected {text!r}" if text else "unexpected end")

    def _word(self, token: Token) -> Node:
        """Parse an atom that begins with a word, already taken.

        `$5` is a unit node, `AB(x)` a call, `AB` a symbol, and any other word a label.
        """
        kind, text = token
        unit = parse_unit(text) if kind != "word" else None
        is_money = unit is not None and unit.dimension[0][0] in MONEY
        if text in CURRENCIES or (is_money and self.peek.kind == "number"):
            return Node("unit", (self.power(),), text)
        if self.peek.text == "(" and kind != "word":
            return call(text, *self._arguments())
        if kind == "name" or (text.isupper() and len(text) > 1):
            return symbol(text)
        # Words in any case are one label, but two letters may be names: `Pa` is not `pa`.
        return Node("label", (), text.lower() if len(text) > 2 else text)

    def _applied(self, head: Node) -> Node:
        """Return `f(x)` as a call if `head`, the symbol just read, is a function; else `head`.

        `x(x + 1)` is a product: only x is returned, and the caller reads the second factor.
        """
        is_braced = self.peek.text == "{" and self.ahead(1).text == "("
        if not is_braced and self.peek != Token("operator", "("):
            return head
        # The f of f_1, f' and f^-1.
        first = head.name.partition("_")[0].rstrip("'").removesuffix("^-1")
        # A capital, `R(x)`, or a letter with a mark, `y_1(x)`, is a function only of a letter or
        # number.
        is_function = first in _FUNCTION_LETTERS or "'" in head.name or "^-1" in head.name
        is_capital = first.isupper() or first in ("phi", "psi", "Phi", "Psi", "chi")
        is_variable = self.ahead(1).kind in ("letter", "number") and self.ahead(2).text == ")"
        # `P(1, 2)` is a point. The tokens are searched, since parsing the group twice would double
        # the work at each level of `A(A(A(`.
        inside = (token.text for token in self.tokens[self.position + 1 :])
        marks = (text for text in inside if text in ("(", ",", ")"))
        is_point = is_capital and next(marks, "") == ","
        if is_function or is_point or (is_variable and (is_capital or head.name != first)):
            return call(head.name, *self._arguments())
        return head

    def _arguments(self) -> tuple[Node, ...]:
        """Parse the next group, `(a, b)`, and return the parts between its commas."""
        opening = self.next().text
        closings = BRACKETS[opening][:1]
        inside = self.statement(closing=closings)
        self.expect(*closings)
        return inside.args if inside.kind == "list" and inside.name == "," else (inside,)

    def _digit(self) -> Node:
        r"""Parse one argument of `\frac`: an atom, or a single digit, the 1 of `\frac12`."""
        token = self.peek
        if len(token.text) > 1 and token.text.isdigit():
            # "12" is one token: take its first digit, and leave the others as the next token.
            self.tokens[self.position] = token._replace(text=token.text[1:])
            return number(int(token.text[0]), token.text[0])
        return self.atom()

    def _command(self, name: str) -> Node:
        r"""Parse an atom that begins with a command, such as `\sqrt`, already taken.

        Args:
            name: the command without its backslash.
        """
        if name in ("frac", "binom"):
            sides = self._digit(), self._digit()
            return Node("quotient", sides) if name == "frac" else call("binomial", *sides)
        if name == "infty":
            return symbol("infinity")
        if name in _ROUNDINGS:
            function, closing = _ROUNDINGS[name]
            inside = self.statement(closing=(closing,))
            self.expect(closing)
            return call(function, inside)
        if name == "sqrt":
            return self._root()
        if name in _CALCULUS:
            return self._calculus(name)
        if name == "begin":
            return self._environment()
        if name == "emptyset":
            return Node("set")
        if name in FUNCTIONS:
            return self._function(name)
        if name in _FIGURES or (name == "Delta" and self.peek.kind == "letter"):
            # `\angle ABC` is one name: the mark and the letters after it.
            group = self.take("{")
            letters: list[str] = []
            while self.peek.kind in ("letter", "name") or (letters and self.peek.kind == "number"):
                letters.append(self.next().text)
            if group:
                self.expect("}")
            return symbol(f"{name} {''.join(letters)}")
        if name in ACCENTS:
            return self._accented(name)
        if name in GREEK:
            return self._applied(symbol(name))
        if name == "ldots":
            return symbol("ldots")
        raise Unparsable(f"unknown command \\{name}")

    def _root(self) -> Node:
        r"""Parse the rest of `\sqrt[3]{8}`: the index, 2 if there is none, and the radicand."""
        index = number(2)
        if self.take("["):
            index = self.statement(closing=("]",))
            self.expect("]")
        if self.peek.text in ("^", "_"):
            raise Unparsable("a root of nothing")
        return Node("root", (index, self.atom()))

    def _accented(self, name: str) -> Node:
        r"""Parse an accent's argument; the accent is an unknown function: `\vec{v}` is vec(v).

        Raises:
            Unparsable: there is a bar over a number.
        """
        inside = self.atom()
        # A label, a word, has no symbols either, but is no number.
        if name == "overline" and not free_symbols(inside) and inside.kind != "label":
            # `\overline{25}` may be digits that repeat, or the digits of one number.
            raise Unparsable("a bar over a number")
        # The letters of `\overline{ab}` may be digits, those of `\vec{ab}` points.
        if inside.kind == "product" and all(part.kind == "symbol" for part in inside.args):
            inside = call("letters", *inside.args)
        return call(name, inside)

    def _function(self, name: str) -> Node:
        r"""Parse the rest of a function: `\sin^2 x`, `\log_2 8`, `\max(1, 2)`.

        `\sin^2 x` is (sin x)^2, `\sin^{-1} x` is arcsin x, `\log_2 8` is log(8, 2). A function
        without an argument is a symbol.
        """
        scripts = self._scripts()
        base, exponent = scripts.get("_"), scripts.get("^")
        if not self.starts_atom() and self.peek.text != "-":
            if exponent is not None:
                raise Unparsable("a function of nothing")
            return symbol(name if base is None else f"{name}_{spelled(base)}")
        if name in _OF_SEVERAL and self.peek.text not in BRACKETS:
            raise Unparsable("a function of several without brackets")
        operand = self._operand()
        if not operand:
            raise Unparsable("a function of nothing")
        # `log(8, 2)` has its base as the second argument, as in Python.
        if len(operand) > 1 and name not in _OF_SEVERAL and name != "log":
            raise Unparsable("a function of one with several arguments")
        if exponent is not None and exponent.value == -1:
            if name not in _TRIGONOMETRIC:
                raise Unparsable("an inverse or a reciprocal")
            return call(f"arc{name}", *operand)
        if base and (name != "log" or len(operand) > 1):
            raise Unparsable("a function with a base")
        applied = call(name, operand[0], base) if base else call(name, *operand)
        return applied if exponent is None else Node("power", (applied, exponent))

    def _scripts(self) -> dict[str, Node]:
        r"""Parse the subscript and the exponent of a command, `\log_2^3`, in any order.

        Return {"_": subscript, "^": exponent}; a missing one has no key.
        """
        scripts: dict[str, Node] = {}
        while mark := self.take("^", "_"):
            if mark.text in scripts:
                raise Unparsable("a second subscript or exponent")
            scripts[mark.text] = self._exponent() if mark.text == "^" else self.atom()
        return scripts

    def _operand(self) -> tuple[Node, ...]:
        r"""Parse a function's arguments: those in brackets, else one product of factors.

        The product ends before the next sign, function, group or differential: `\sin 2x \cos y` is
        sin(2x) cos(y).
        """
        if self.peek.text in BRACKETS and self.peek.kind == "operator":
            return self._arguments()
        factors = [self.signed() if self.peek.text == "-" else self.power()]
        while self.starts_atom() and not _ENDS_OPERAND.fullmatch(self.peek.text):
            factors.append(self.power())
            # `\sin 2\frac12` may be the sine of a mixed number.
            parts = (factors[-2], *factors[-1].args)
            if factors[-1].kind == "quotient" and all(part.name.isdigit() for part in parts):
                raise Unparsable("a mixed number without brackets")
        operand = factors[0] if len(factors) == 1 else Node("product", tuple(factors))
        # `\sin \pi/6`, `\sin 2(x+1)`, `log2(8)`, but not `\ln 5/\ln 2`
        may_go_on = self.peek.text in ("/", "(") and self.ahead(1).text not in FUNCTIONS
        if may_go_on and not free_symbols(operand):
            raise Unparsable("an argument that may go on")
        return (operand,)

    def _calculus(self, name: str) -> Node:
        r"""Parse the bounds and the body of a sum, product, integral or limit: `\sum_{k=1}^n k^2`.

        Return a node (lower, upper, body); a missing bound is an empty list.
        """
        scripts = self._scripts()
        lower, upper = (scripts.get(mark, Node("list")) for mark in "_^")
        body = self.product()
        # An index i is no imaginary unit, also in `\sum_{1 \le i \le n}`, and an index k is no k
        # outside.
        letters = ["i"] if name in ("sum", "prod") and symbol("i") in nodes(lower) else []
        if lower.kind == "relation" and lower.args[0].kind == "symbol":
            letters = [lower.args[0].name]
        index = {letter: symbol(f"index {letter}") for letter in letters}
        lower, body = substituted(lower, index), substituted(body, index)
        return Node("calculus", (lower, upper, body), name)

    def _group(self, opening: str) -> Node:
        r"""Parse a group; its bracket `opening` is already taken.

        `(a + b)` -> the sum inside; `(1, 2]` -> a tuple with the name "(]"; `\{1, 2\}` -> a set;
        `\{x : x > 0\}` -> a builder; `[5]` -> a tuple of one element, "[]".

        Raises:
            Unparsable: the brackets do not match, such as `(5]`.
        """
        start = self.position
        outer = self.bars, self.in_set
        # Inside the group, `|` may open an absolute value again.
        self.bars, self.in_set = 0, opening == "{set"
        closings = BRACKETS[opening]
        # In a set, the statement may also end at the sign before its condition.
        conditions = ("mid", ":", "|") if self.in_set else ()
        inside = self.statement(closing=(*closings, *conditions, "choose"))
        if opening == "{" and self.take("choose"):
            inside = call("binomial", inside, self.statement(closing=closings))
        is_builder = self.in_set and bool(self.take("mid", "|", ":"))
        if is_builder:
            self.in_set = False
            inside = Node("builder", (inside, self.statement(closing=closings)))
        self.bars, self.in_set = outer
        closing = self.expect(*closings).text
        if opening == "{":
            return inside
        if opening == "{set":
            items = inside.args if inside.kind == "list" else (inside,)
            # An inner set is one element: `\{\{1, 2\}\}` has one.
            return inside if is_builder else Node("set", items)
        if inside.kind == "list" and inside.name == ",":
            return Node("tuple", inside.args, "<>" if opening == "langle" else opening + closing)
        # Rows without brackets, named "stack", become a matrix with them.
        if inside.kind == "matrix" and opening + closing in ("()", "[]"):
            return inside._replace(name="matrix")
        # `\langle x \rangle` has the commands langle and rangle.
        if opening + closing in ("()", "[]", "langlerangle"):
            # `[x + 1]` is a tuple of one element if it is the whole answer, else a factor; `[5]`
            # always is.
            is_list = inside.kind == "number" or (start == 1 and self.peek is END)
            return Node("tuple", (inside,), "[]") if opening == "[" and is_list else inside
        raise Unparsable("a half-open bracket around one element")

    def _absolute(self, bar: str) -> Node:
        """Parse `|x|` or `‖x‖`, abs(x) or norm(x); the first bar is already taken."""
        self.bars += 1
        inside = self.statement(closing=(bar,))
        self.expect(bar)
        self.bars -= 1
        return call("abs" if bar == "|" else "norm", inside)

    def _environment(self) -> Node:
        r"""Parse an environment: a matrix, cases, or a system; `\begin` is already taken.

        `\begin{pmatrix}1&2\\3&4\end{pmatrix}` is a matrix of two rows. A system (cases or aligned
        lines of one column) is returned as a list.
        """
        name = self._raw().rstrip("*")
        # A bar between the columns, `{c|c}`, is part of the matrix.
        if name == "array" and self.peek.text == "{" and "|" in self._raw():
            raise Unparsable("a matrix with a bar")
        rows: list[Node] = []
        # `\\` separates rows; one before `\end` begins no row.
        while not rows or (self._take_all("\\") and self.peek.text != "end"):
            cells = [self._cell()]
            while self.take("&"):
                cells.append(self._cell())
            rows.append(Node("tuple", tuple(cells), "row"))
        self.expect("end")
        if self._raw().rstrip("*") != name:
            raise Unparsable("an environment that ends as another")
        if name in ("cases", "aligned"):
            is_system = all(len(row.args) == 1 for row in rows)
            items = tuple(row.args[0] for row in rows if is_system)
            return Node("list", items, ",") if is_system else Node("cases", tuple(rows))
        if name not in _MATRICES:
            raise Unparsable(f"environment {name}")
        # The environment `matrix` has no brackets of its own: "stack", unless `_group` renames it.
        inside = Node("matrix", tuple(rows), "matrix" if name != "matrix" else "stack")
        return call("det", inside) if name == "vmatrix" else inside

    def _take_all(self, text: str) -> bool:
        """Take a sign as often as it comes; return True if there was one."""
        start = self.position
        while self.take(text):
            pass
        return self.position > start

    def _cell(self) -> Node:
        r"""Parse one entry of an environment, up to `&`, `\\` or `\end`: `\text{if } x > 0`.

        Raises:
            Unparsable: it is in words other than "otherwise".
        """
        while self.peek.text.lower() in ("if", "for", "when", ",", "where"):
            self.next()
        node = self.statement(closing=("&", "\\", "end"))
        self.take(".")
        is_otherwise = node == Node("label", (), "otherwise")
        if not is_otherwise and any(part.kind in ("label", "unit") for part in nodes(node)):
            raise Unparsable("a cell in words")
        return node

    def _exponent(self) -> Node:
        """Parse the exponent after `^`: a group or one atom, with its sign: `x^-2`, `2^3^2`."""
        if sign := self.take("-", "+"):
            operand = self._exponent()
            return negated(operand) if sign.text == "-" else operand
        base = self.atom()
        # A tower, `2^3^2`, is 2^(3^2).
        if self.peek.text == "^" and base.kind in ("number", "symbol"):
            self.deeper()
            base = self._postfix(base)
            self.depth -= 1
        return base

    def _postfix(self, node: Node) -> Node:
        """Parse the marks after `node`, such as `_1^2`, and return the tree of both."""
        count = 0
        while token := self.take(*_POSTFIXES):
            count += 1
            if count > 8:
                raise TooHard("too much is attached to one atom")
            if token.text in ("^", "_") and node.name.startswith("bb:"):
                # `\mathbb{R}^+` is one name, not a power.
                node = symbol(f"{node.name}{token.text}{self._raw()}")
            elif token.text == "^":
                node = self._raised(node)
            elif token.text == "_":
                node = self._lowered(node)
            elif token.text == "degree" and node.kind not in ("percent", "degree"):
                # A temperature, `20 °C`, is no angle times a letter.
                is_angle = self.peek.text not in ("C", "F", "K")
                name = "" if is_angle else f"°{self.next().text}"
                node = Node("degree" if is_angle else "unit", (node,), name)
            elif token.text[0] == "'":
                if node.kind != "symbol":
                    raise Unparsable("a prime on what is no name")
                node = self._applied(node._replace(name=node.name + token.text))
            elif token.text == "!":
                node = Node("factorial", (node,))
                # The double factorial `n!!` is not `(n!)!`.
                if self.peek.text == "!":
                    raise Unparsable("a second factorial sign")
            elif node.kind in ("percent", "degree", "unit"):
                raise Unparsable("a percentage of a quantity")
            else:
                node = Node("percent", (node,))
        return node

    def _raw(self) -> str:
        r"""Take the next group, or the next token, and return its text without braces, unparsed.

        Used for `>0` in `\mathbb{R}_{>0}`, and for both groups of `\begin{array}{cc}`.
        """
        texts = [self.next().text]
        while texts[0] == "{" and texts[-1] != "}":
            # The texts are joined without a space: the tokens 1 and 2 would become 12.
            if texts[-1].isdigit() and self.peek.kind == "number":
                raise Unparsable("two numbers side by side")
            texts.append(self.next().text)
            if not texts[-1]:
                raise Unparsable("unexpected end")
        return "".join(texts).strip("{}")

    def _raised(self, node: Node) -> Node:
        r"""Parse the exponent of `node`, and return the tree of both, usually a power.

        `f^{-1}(x)` calls an inverse function.
        """
        exponent = self._exponent()
        if node.kind == "symbol":
            # `x^2_1` is `x_1^2`.
            if self.take("_"):
                node = self._lowered(node)
            # A letter that is a function before a bracket: `f^{-1}(x)`, but not `x^{-1}(x + 1)`.
            is_inverse = exponent.value == -1 and self.peek.text == "("
            if is_inverse and node.name[:1] in _FUNCTION_LETTERS:
                return self._applied(node._replace(name=f"{node.name}^-1"))
        return Node("power", (node, exponent))

    def _lowered(self, node: Node) -> Node:
        """Parse the subscript of `node`: `101_2` is a number in base 2, `x_1` one name."""
        below = self.atom()
        if node.kind == "number" and below.kind == "number":
            if not node.name.isdigit():
                raise Unparsable("digits that are no integer")
            # The digits stay a name, without leading zeros: 011_2 is 11_2.
            return Node("base", (below,), node.name.lstrip("0") or "0")
        if node.kind not in ("symbol", "label"):
            raise Unparsable("a subscript on what is no name")
        lowered = symbol(f"{node.name}_{spelled(below)}")
        return self._applied(lowered)

    def with_unit(self, node: Node) -> Node:
        r"""Parse the unit after `node`, and return the unit node of both: `5 \text{ m/s}^2`.

        A unit is words, their integer powers, and `/` or `·` between them.
        """
        # `4:30 pm` is a time, `45° 30'` an angle in two units.
        if any(part.kind in ("ratio", "degree") for part in nodes(node)):
            raise Unparsable("a time or an angle with a unit")
        parts = [self.next().text]
        while True:
            after_next = self.ahead(1)
            is_letter = self.peek.kind in ("name", "letter")
            # A letter may be a variable: it belongs to the unit only after "per" or "/", or after a
            # unit.
            is_next = parts[-1] in ("per", "/") or (
                is_unit(parts[-1].partition("^")[0]) and is_unit(self.peek.text)
            )
            if self.peek.kind in ("text", "word") or (is_letter and is_next):
                parts.append(self.next().text)
            elif self.take("^"):
                exponent = self._exponent()
                if exponent.value is None or exponent.value.denominator != 1:
                    raise Unparsable("a unit to a power that is no integer")
                parts.append(f"^{int(exponent.value)}")
            # A sign belongs to the unit only if letters come after it: `5 kg / s`, not `5 kg / 2`.
            elif after_next.kind in ("text", "word", "letter", "name") and (
                sign := self.take("/", "cdot", "*")
            ):
                parts.append("/" if sign.text == "/" else "*")
                parts.append(self.next().text)
            else:
                return Node("unit", (node,), " ".join(parts).replace(" ^", "^").replace("* ", ""))


# `0.1(6)`, `0.1\overline{6}`, `0.1\dot6`
_REPEATING = re.compile(r"(\d*\.\d*?)(?:\((\d+)\)|\\overline\{(\d+)\}|((?:\\dot\{?\d\}?)+))")
# `0.1666...`: digits that occur at least twice before the dots.
_DOTS = re.compile(r"(\d*\.\d*?)(\d+?)\2+(?:\\[lc]?dots|\.\.\.)")


def parse_number(literal: str) -> Node:
    """Return the number node of a literal: "1.50" is 3/2; "0.(3)" and "0.333..." are 1/3.

    Raises:
        Unparsable: there are dots after digits that do not repeat.
        TooHard: it has more than `MAX_DIGITS` characters.
    """
    if len(literal) > MAX_DIGITS:
        raise TooHard("digits of a literal")
    if literal.isdigit():
        return number(int(literal), literal)
    repeating = _REPEATING.fullmatch(literal) or _DOTS.fullmatch(literal)
    if repeating:
        plain, *repeated = repeating.groups()
        # Each spelling of a repetition is another group of the pattern; one of them matched.
        digits = re.sub(r"\D", "", next(filter(None, repeated)))
        places = len(plain.partition(".")[2])
        # 0.1(6) is 0.1 + 6/9 / 10.
        tail = Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
        return number(Fraction(f"0{plain}0") + tail)
    if "dots" in literal or literal.endswith("..."):
        raise Unparsable("digits that go on unknown")
    return number(Fraction(literal), literal)


_KNOWN = (
    FUNCTIONS | GREEK | ACCENTS | _CALCULUS | _ROUNDINGS.keys() | _FIGURES
    | names("frac binom begin emptyset langle {set infty ldots")
)  # fmt: skip
