"""From text to tree: a recursive-descent parser for LaTeX and plain notation alike.

It reads what people and models write, not only what TeX accepts: `\\frac12`, `sqrt2`, `2**(1/4)`,
`x^10`. Nothing is evaluated here, and nothing is ever executed. Precedence, loosest first:
separators, relations, set operations, sums, products, signs, powers.
"""

from fractions import Fraction

from lib.verifier.atoms import Atoms
from lib.verifier.normalize import END, tokenize
from lib.verifier.tree import (
    MAX_ANSWER_CHARS,
    MAX_DEPTH,
    MAX_ITEMS,
    Node,
    TooHard,
    Unparsable,
    negated,
    number,
    remembered,
)

RELATIONS = {
    "=": "=", "<": "<", ">": ">", "le": "<=", "ge": ">=", "ne": "!=", "approx": "~", "in": "in",
    "equiv": "=", "propto": "propto", "to": "to", "rightarrow": "to", "implies": "to",
    "subset": "subset", "subseteq": "subset", "notin": "notin",
}  # fmt: skip
_TURNED = {">": "<", ">=": "<="}
SET_OPERATIONS = {"cup": "union", "cap": "intersection", "setminus": "difference"}
_PRODUCT_SIGNS = ("*", "cdot", "times")
_QUOTIENT_SIGNS = ("/", "div")
_SIGNS = {"+": "+", "-": "-", "pm": "+-", "mp": "-+"}


@remembered(8192)
def parse(text: str) -> Node:
    """The tree of a normalized answer; commas separate where they group no number.

    Raises:
        Unparsable: not mathematics that this parser knows.
        TooHard: beyond a limit.
    """
    if len(text) > MAX_ANSWER_CHARS:
        raise TooHard(f"more than {MAX_ANSWER_CHARS} characters")
    parser = Parser(tokenize(text))
    tree = parser.statement()
    if parser.peek is not END:
        raise Unparsable(f"unexpected {parser.peek.text!r}")
    return tree


class Parser(Atoms):
    """One method for each level of precedence."""

    def statement(self, *, closing: tuple[str, ...] = ()) -> Node:
        """Everything up to the end or a closing bracket: one element, or a list of them."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooHard(f"nested more than {MAX_DEPTH} deep")
        items, separators = self._items(closing)
        self.depth -= 1
        if len(items) == 1 and not separators:
            return items[0]
        return _grouped(items, separators)

    def _items(self, closing: tuple[str, ...]) -> tuple[list[Node], list[str]]:
        items: list[Node] = []
        separators: list[str] = []
        while self.peek is not END and self.peek.text not in closing:
            items.append(self.element())
            if len(items) > MAX_ITEMS:
                raise TooHard(f"more than {MAX_ITEMS} elements")
            separator = self._separator()
            if not separator:
                break
            separators.append(separator)
        return items, separators

    def _separator(self) -> str:
        """The next separator, of ", and" the word; '' where there is none."""
        separator = ""
        while token := self.take(",", ";", "and", "or"):
            separator = token.text if not separator or token.text in ("and", "or") else separator
        return separator

    def element(self) -> Node:
        """Set expressions joined by relations; what is greater than is read from right to left."""
        operands, operators = [self.set_expression()], []
        while operator := self._relation():
            operators.append(operator)
            operands.append(self.set_expression())
        if not operators:
            return operands[0]
        turned = [_TURNED.get(operator, operator) for operator in operators]
        if turned != operators and not {"<", "<="} & {*operators}:
            operands, operators = operands[::-1], turned[::-1]
        return Node("relation", tuple(operands), " ".join(operators))

    def _relation(self) -> str | None:
        token = self.peek
        if token.kind not in ("operator", "command") or token.text not in RELATIONS:
            return None
        self.next()
        return RELATIONS[token.text]

    def set_expression(self) -> Node:
        """Sums joined by set operations, from left to right."""
        left = self.sum()
        while token := self.take(*SET_OPERATIONS):
            left = Node(SET_OPERATIONS[token.text], (left, self.sum()))
        return left

    def sum(self) -> Node:
        """Terms with their signs; ± opens a node of its own."""
        terms = [self.product()]
        while self.peek.text in _SIGNS and self.peek.kind in ("operator", "command"):
            sign = self.next().text
            term = self.product()
            if sign in ("pm", "mp"):
                left = terms[0] if len(terms) == 1 else Node("sum", tuple(terms))
                terms = [Node("plusminus", (left, term), _SIGNS[sign])]
            elif term.kind == "set" and sign == "-" and len(terms) == 1:
                # A minus before a set is their difference, `\\mathbb{R} - \\{1\\}`.
                terms = [Node("difference", (terms[0], term))]
            else:
                terms.append(term if sign == "+" else negated(term))
        return terms[0] if len(terms) == 1 else Node("sum", tuple(terms))

    def product(self) -> Node:
        """Factors, written with or without a sign between them, and units at their end."""
        left = self.signed()
        while True:
            if self.peek.kind == "text":
                left = self.with_unit(left)
            elif self.take(*_PRODUCT_SIGNS):
                left = _product(left, self.signed())
            elif self.take(*_QUOTIENT_SIGNS):
                left = _quotient(left, self.signed())
            elif not self.in_set and self.take(":"):
                left = Node("ratio", (left, self.signed()))
            elif self.take("pmod", "bmod", "mod"):
                left = Node("call", (left, self.power()), "mod")
            elif self.starts_atom():
                left = self._implicit(left)
            else:
                return left

    def _implicit(self, left: Node) -> Node:
        """`left` times what follows it without a sign, or a mixed number."""
        is_literal = self.peek.kind == self.tokens[self.position - 1].kind == "number"
        left, right = _one_element(left), _one_element(self.power())
        if mixed := _mixed(left, right):
            return mixed
        if _is_integer(left) and _is_integer(right) and self.take("/"):
            below = self.power()
            if mixed := _mixed(left, _quotient(right, below)):
                return mixed
        if is_literal and right.kind == "number":
            raise Unparsable("two numbers side by side")
        return _product(left, right)

    def signed(self) -> Node:
        """A power with signs before it."""
        sign = self.peek.text if self.peek.kind in ("operator", "command") else ""
        if sign not in _SIGNS:
            return self.power()
        count = 0
        while self.take(sign):
            count += 1
        if sign in ("pm", "mp"):
            return Node("plusminus", (self.signed_product(),), _SIGNS[sign])
        operand = self.signed_product() if self.peek.text in _SIGNS else self._leading()
        return negated(operand) if sign == "-" and count % 2 else operand

    def signed_product(self) -> Node:
        """What ± applies to: a product."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooHard(f"nested more than {MAX_DEPTH} deep")
        operand = self.product()
        self.depth -= 1
        return operand

    def _leading(self) -> Node:
        """A power, or the mixed number that a sign stands before."""
        first = self.power()
        follows = self.peek.kind == "number" or self.peek == ("command", "frac")
        return self._implicit(first) if follows and _is_integer(first) else first


def _grouped(items: list[Node], separators: list[str]) -> Node:
    """A list; of items split by commas inside and semicolons outside, a list of lists."""
    name = "or" if "or" in separators else separators[-1] if separators else ""
    if ";" not in separators or name == "or" or len({*separators}) == 1:
        return Node("list", tuple(items), name)
    groups: list[list[Node]] = [[]]
    for item, separator in zip(items, [*separators, ""], strict=False):
        groups[-1].append(item)
        if separator == ";":
            groups.append([])
    return Node("list", tuple(_grouped(group, [","]) for group in groups if group), ";")


def _product(left: Node, right: Node) -> Node:
    factors = left.args if left.kind == "product" else (left,)
    return Node("product", (*factors, right))


def _quotient(above: Node, below: Node) -> Node:
    return Node("quotient", (above, below))


def _one_element(node: Node) -> Node:
    """Braces around one factor group it: `\\{x + y\\} z`."""
    return node.args[0] if node.kind == "set" and len(node.args) == 1 else node


def _is_integer(node: Node) -> bool:
    return node.kind == "number" and node.name.isdigit()


def _mixed(whole: Node, part: Node) -> Node | None:
    """`1\\frac{1}{10}`: an integer before a proper fraction of integers."""
    if part.kind in ("percent", "degree"):
        inside = _mixed(whole, part.args[0])
        return inside and Node(part.kind, (inside,))
    if part.kind != "quotient" or not all(map(_is_integer, (whole, *part.args))):
        return None
    integer, above, below = (int(each.name) for each in (whole, *part.args))
    return number(integer + Fraction(above, below)) if above < below else None
