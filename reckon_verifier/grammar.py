"""Parse tokens into a tree: a recursive-descent parser for both LaTeX and plain notation.

It reads the notation of people and models, more than TeX accepts: `\\frac12`, `sqrt2`, `2**(1/4)`,
`x^10`. It consumes every token, or refuses the text. It evaluates nothing, and executes nothing.
Precedence, loosest first, each level with its method: or, separators (`statement`), relations
(`element`), set operations (`set_expression`), sums (`sum`), products (`product`), signs
(`signed`), powers (`reckon_verifier.atoms.Atoms.power`).
"""

from collections.abc import Iterable
from fractions import Fraction

from reckon_verifier.atoms import Atoms
from reckon_verifier.tokens import END, Token
from reckon_verifier.tree import (
    MAX_DEPTH,
    MAX_ITEMS,
    Node,
    TooHard,
    Unparsable,
    call,
    negated,
    nodes,
    number,
    pairs,
    remembered,
    symbol,
)

RELATIONS = {"=": "="} | pairs(
    "<=< >=> le=<= ge=>= ne=!= approx=~ in=in ni=ni equiv=equiv propto=propto to=to iff=iff "
    "mapsto=mapsto subset=subset subseteq=subseteq supset=supset supseteq=supseteq notin=notin "
    "sim=sim cong=cong parallel=parallel perp=perp mid=mid nmid=nmid simeq=simeq"
)
TURNED = {">=": "<="} | pairs(">=< ni=in supset=subset supseteq=subseteq")
SET_OPERATIONS = {"cup": "union", "cap": "intersection", "setminus": "difference"}
_PRODUCT_SIGNS = ("*", "cdot", "times", "circ")
_QUOTIENT_SIGNS = ("/", "div")
_SIGNS = {"+": "+", "-": "-", "pm": "+-", "mp": "-+"}


@remembered(8192)
def parse(tokens: tuple[Token, ...]) -> Node:
    """Return the tree of an answer's tokens: those of `x - 1` give sum(x, -1).

    Raises:
        Unparsable: the tokens are no mathematics that this parser knows.
        TooHard: a limit of length or depth is passed.
    """
    parser = Parser(tokens)
    tree = parser.statement(closing=("choose",))
    if parser.take("choose"):
        tree = call("binomial", tree, parser.statement())
    if parser.peek is not END:
        raise Unparsable(f"unexpected {parser.peek.text!r}")
    _check_depth(tree)
    return tree


def _check_depth(tree: Node) -> None:
    """Raise `TooHard` for a tree that is too deep for recursive functions."""
    # Without recursion; a group of the text can make several levels of nodes.
    level = [tree]
    for _ in range(3 * MAX_DEPTH):
        level = [part for node in level for part in node.args]
        if not level:
            return
    raise TooHard("a tree that is too deep")


class Parser(Atoms):
    """The parser, with one method for each level of precedence.

    A method that parses begins at the next token, moves past the tokens of its level, and returns
    their tree.
    """

    def statement(self, *, closing: tuple[str, ...] = ()) -> Node:
        """Parse up to the end or a bracket in `closing`: one element, or a list, `1, 2 or 3`.

        The closing bracket stays the next token.
        """
        self.deeper()
        items: list[Node] = []
        separators: list[str] = []
        while self.peek is not END and self.peek.text not in closing:
            items.append(self.element())
            if len(items) > MAX_ITEMS:
                raise TooHard(f"more than {MAX_ITEMS} elements")
            separators.append(self._separator())
            if not separators[-1]:
                break
        self.depth -= 1
        # Only a set, `\{\}`, may be empty: "}set" is its closing bracket.
        if not items and "}set" not in closing:
            raise Unparsable("nothing in brackets")
        # Now separators[n] is between items[n] and items[n + 1]. A comma at the end is ignored.
        *separators, last = separators or [""]
        if last not in ("", ","):
            raise Unparsable("a separator at the end")
        return items[0] if len(items) == 1 else _grouped(items, separators)

    def _separator(self) -> str:
        """Take the next separator and return its text, "and" for ", and"; '' if there is none."""
        token = self.take(",", ";", "and", "or")
        word = self.take("and", "or") if token and token.text in ",;" else None
        return (word or token or END).text

    def element(self) -> Node:
        r"""Parse set expressions joined by relations: none, `a = b`, or a chain, `0 < x < 1`.

        A chain of `>` is turned round: `a > b` is returned as `b < a`.
        """
        operands, operators = [self.set_expression()], []
        while operator := self._relation():
            operators.append(operator)
            operands.append(self.set_expression())
        if not operators:
            return operands[0]
        turned = [TURNED.get(operator, operator) for operator in operators]
        # A chain in both directions, `a > b < c`, stays.
        # The set has the operators that point this way already.
        if turned != operators and not {"<", "<=", "in", "subset", "subseteq"} & {*operators}:
            operands, operators = operands[::-1], turned[::-1]
        return Node("relation", tuple(operands), " ".join(operators))

    def _relation(self) -> str | None:
        r"""Take the next relation sign and return its name, "<=" for `\le`; None for others."""
        token = self.peek
        if token.kind not in ("operator", "command") or token.text not in RELATIONS:
            return None
        # In a set, `\mid` begins the condition.
        if self.in_set and token.text == "mid":
            return None
        self.next()
        return RELATIONS[token.text]

    def set_expression(self) -> Node:
        """Parse sums joined by set operations, `A ∪ B ∪ C`.

        Raises:
            Unparsable: the operations differ, or ∖ is repeated: `A ∪ B ∩ C` needs brackets.
        """
        left, sign = self.sum(), ""
        while token := self.take(*SET_OPERATIONS):
            if sign and (sign != token.text or sign == "setminus"):
                raise Unparsable("set operations of unknown order")
            sign = token.text
            kind = SET_OPERATIONS[sign]
            parts = left.args if left.kind == kind else (left,)
            # `{1, 3} \\cup {2}`: groups with commas are sets here.
            operands = (*parts, self.sum())
            left = Node(
                kind, tuple(Node("set", x.args) if x.kind == "list" else x for x in operands)
            )
        return left

    def sum(self) -> Node:
        """Parse terms with their signs: `a - b` is the sum of a and -b.

        The terms before a ± become its left operand: `a + b ± c` is plusminus(a + b, c).
        """
        terms, num_both = [self.product()], 0
        while self.peek.text in _SIGNS and self.peek.kind in ("operator", "command"):
            sign = self.next().text
            term = self.product()
            if sign in ("pm", "mp"):
                num_both += 1
                if num_both > 4:
                    raise TooHard("more than four ±")
                left = terms[0] if len(terms) == 1 else Node("sum", tuple(terms))
                terms = [Node("plusminus", (left, term), _SIGNS[sign])]
            elif sign == "-" and len(terms) == 1 and (term.kind == "set" or _is_set(terms[0])):
                # `\mathbb{R} - \{1\}` is a difference of sets.
                terms = [Node("difference", (terms[0], term))]
            else:
                terms.append(term if sign == "+" else negated(term))
        return terms[0] if len(terms) == 1 else Node("sum", tuple(terms))

    def product(self) -> Node:
        r"""Parse factors, with or without a sign between them, and units at their end.

        This level has `2x`, `a / b`, `1:2:3` and `5 cm`. It binds from left to right:
        `2x/3y` is ((2x)/3)y.
        """
        left = self.signed()
        while True:
            # A label is a word itself and has no unit: `red green` is refused.
            if self.peek.kind in ("text", "word") and left.kind != "label":
                left = self.with_unit(left)
            elif sign := self.take(*_PRODUCT_SIGNS):
                left = _times(left, self.signed(), sign.text)
            elif sign := self.take(*_QUOTIENT_SIGNS):
                below = self.signed()
                # `1/2\%`, `-1.5/2\%`, but not `15 \div 20\%`
                numbers = all(part.kind == "number" for part in (left, *below.args))
                if sign.text == "/" and below.kind == "percent" and numbers:
                    raise Unparsable("a percentage of a fraction or of its denominator")
                left = Node("quotient", (left, below))
            # A ratio, `1:2`; in a set, `:` begins the condition.
            elif not self.in_set and self.take(":"):
                terms = left.args if left.kind == "ratio" else (left,)
                left = Node("ratio", (*terms, self.signed()))
            # No sign is a product, `2x`.
            elif self.starts_atom():
                left = self._implicit(left)
            else:
                return left

    def _implicit(self, left: Node) -> Node:
        r"""Parse the factor that follows without a sign, and return its product with `left`: `2x`.

        An integer before a proper fraction is a mixed number, not a product: `1\frac12`, `1 1/2`.

        Raises:
            Unparsable: there are two numbers side by side, words, or an improper fraction.
        """
        last_kind, following = self.tokens[self.position - 1].kind, self.peek
        # `2 3/4` is a mixed number, `(2) 3/4` a product.
        may_be_mixed = last_kind == "number" and (
            following.kind == "number" or following == ("command", "frac")
        )
        right = self.power()
        if may_be_mixed and _is_integer(left):
            if _is_integer(right) and self.take("/"):
                right = Node("quotient", (right, self.power()))
            if mixed := _mixed(left, right):
                return mixed
            # `1 5/3`, `1 5/x` and `1\frac53` may mean a sum or a product.
            is_ambiguous = following.kind == "number" or all(map(_is_integer, right.args))
            if right.kind == "quotient" and is_ambiguous:
                raise Unparsable("an integer before an improper fraction")
        # `1 5`, and `1{5}`, which looks like 15.
        is_number = following.kind == "number" or following.text == "{"
        if last_kind == "number" and right.kind == "number" and is_number:
            raise Unparsable("two numbers side by side")
        if left.kind == "degree" and right.kind == "number":
            raise Unparsable("a number after degrees")
        if left.kind == "set" and len(left.args) == 1 and left.args[0].kind == "sum":
            # `\{x + 1\} y`: braces with one sum in them group a factor, and are no set.
            left = left.args[0]
        if "label" in (left.kind, right.kind) or left.kind in ("unit", "set"):
            raise Unparsable("words among factors")
        return _times(left, right, "")

    def signed(self) -> Node:
        """Parse a power or mixed number with the signs before it: `-x^2` is -(x^2), `--x` is x."""
        sign = self.take(*_SIGNS)
        if sign is None:
            first = self.power()
            # A mixed number binds below the sign: `-1 1/2` is -(1 1/2).
            follows = self.peek.kind == "number" or self.peek == ("command", "frac")
            return self._implicit(first) if follows and _is_integer(first) else first
        self.deeper()
        # ± is before a whole product: `±2x`.
        is_both = sign.text in ("pm", "mp")
        operand = self.product() if is_both else self.signed()
        self.depth -= 1
        if is_both:
            return Node("plusminus", (operand,), _SIGNS[sign.text])
        return negated(operand) if sign.text == "-" else operand


def _grouped(items: list[Node], separators: list[str]) -> Node:
    """Return elements as a list, or as a list of lists if "or" or ";" divides them.

    `1, 2, 3` is a list of three. In `1, 2 or 3, 4` "or" separates two lists, and so does ";" in `1,
    2; 3, 4`.

    Args:
        items: the elements.
        separators: separators[n] is between items[n] and items[n + 1]: ",", ";", "and" or "or".
    """
    # `1; 2; 3` is one list.
    for loose in ("or", ";"):
        if loose not in separators or (loose == ";" and len({*separators}) == 1):
            continue
        if separators[-1] == "or" and {*separators[:-1]} <= {","}:
            return Node("list", tuple(items), "or")
        places = [n for n, sign in enumerate(separators) if sign == loose]
        parts, start = [], 0
        for place in (*places, len(separators)):
            group, inner = items[start : place + 1], separators[start:place]
            parts.append(group[0] if len(group) == 1 else _grouped(group, inner))
            start = place + 1
        return Node("list", tuple(parts), "or" if loose == "or" else ",")
    return Node("list", tuple(items), "and" if "and" in separators else ",")


def _is_set(node: Node) -> bool:
    r"""Return True for a set in braces, a combination of sets, or a set such as `\mathbb{R}`."""
    kinds = ("set", "builder", "union", "intersection", "difference")
    return node.kind in kinds or node.name.startswith("bb:")


def _times(left: Node, right: Node, sign: str) -> Node:
    r"""Return the product of two factors; `sign` is the sign between them, '' if there is none.

    Factors that do not commute are a call: `\mathbf{a} \cdot \mathbf{b}` is "ordered cdot",
    `A \times B` and `f \circ g` are "ordered times" and "ordered circ".
    """
    sides = (left, right)
    # `A \times B` and `[0,1] \times A` are products of sets.
    is_cross = sign == "times" and (all(map(_is_capital, sides)) or any(map(_is_vast, sides)))
    if sign == "circ" or is_cross or all(map(_is_ordered, sides)):
        return call(f"ordered {sign}", left, right)
    factors = left.args if left.kind == "product" else (left,)
    # `A^{-1} B`, `A^T B`: an inverse or a transpose beside another capital letter.
    if any(map(_is_inverse, sides)) and all(map(_has_capital, sides)):
        return _matrix_product((*factors, *(right.args if right.kind == "product" else (right,))))
    return Node("product", (*factors, right))


def _matrix_product(factors: Iterable[Node]) -> Node:
    r"""Return the product of matrices in their order, after the factors without capital letters.

    `2A^{-1}B`, `A^{-1}(2B)` and `A^{-1} \cdot B \cdot 2` are equal, and so are `(A^{-1}B)C` and
    `A^{-1}(BC)`.
    """
    parts = [
        part
        for factor in factors
        for part in (factor.args if factor.name == "ordered " else (factor,))
    ]
    scalars = [part for part in parts if not _has_capital(part)]
    ordered = call("ordered ", *filter(_has_capital, parts))
    return Node("product", (*scalars, ordered)) if scalars else ordered


def _is_capital(node: Node) -> bool:
    """Return True for a symbol of one capital letter."""
    return node.kind == "symbol" and len(node.name) == 1 and node.name.isupper()


def _has_capital(node: Node) -> bool:
    """Return True if capital letters are a part of `node`, which may be matrices: A or AB."""
    return any(part.kind == "symbol" and part.name.isupper() for part in nodes(node))


def _is_inverse(node: Node) -> bool:
    """Return True if a part has capital letters, and the exponent −1 or T.

    The T of `(1+R)^T` is a time, since a matrix is not added to a number.
    """
    for part in nodes(node):
        base, exponent = part.args if part.kind == "power" else (part, None)
        added = base.args if base.kind == "sum" else ()
        is_time = exponent == symbol("T") and any(each.kind == "number" for each in added)
        exponents = (number(-1, "-1"), symbol("T"), symbol("top"))
        if exponent in exponents and _has_capital(base) and not is_time:
            return True
    return False


def _is_ordered(node: Node) -> bool:
    r"""Return True for factors that do not commute, and for nodes that have one inside.

    These are matrices, bold symbols ("bf:"), letters with an arrow or a hat, and products that keep
    the order of their factors ("ordered times").
    """
    marks = ("bf:", "vec", "hat", "ordered")
    return any(part.kind == "matrix" or part.name.startswith(marks) for part in nodes(node))


def _is_vast(node: Node) -> bool:
    r"""Return True for a set, tuple or vector, and all that has one in it: `\mathbb{R}^2`."""
    parts = list(nodes(node))
    return _is_ordered(node) or any(part.kind == "tuple" or _is_set(part) for part in parts)


def _is_integer(node: Node) -> bool:
    """Return True for a number that is written with digits only."""
    return node.kind == "number" and node.name.isdigit()


def _mixed(whole: Node, part: Node) -> Node | None:
    r"""Return the number of an integer before a proper fraction: `1\frac{1}{10}` -> 11/10.

    None if `whole` and `part` are no mixed number.
    """
    # `1\frac12 \%`: the percent sign belongs to the whole number.
    if part.kind in ("percent", "degree"):
        inside = _mixed(whole, part.args[0])
        return inside and Node(part.kind, (inside,))
    if part.kind != "quotient" or not all(map(_is_integer, (whole, *part.args))):
        return None
    integer, above, below = (int(each.name) for each in (whole, *part.args))
    return number(integer + Fraction(above, below)) if above < below else None
