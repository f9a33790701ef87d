"""What a template may spend, and the rewriting of its syntax tree so that it pays for everything.

Jinja's sandbox keeps a template from reaching the machine, not from filling it: two lines can ask
for a terabyte. So every loop turn, every call and every string that is built is paid for out of a
budget, and a template that has spent it ends with an error. What remains are templates that are
merely slow, for which the process that renders them has a time limit.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

# Made where no template engine is needed, and handed on with those that are made from it.
from octavo.text.chat.messages import ChatTemplateError as ChatTemplateError

ITEM_COST = 64  # a reference in a container and its small object, in characters
LARGEST_WIDTH = 1000  # of padding, indentation and the like
LARGEST_EXPONENT = 256
LARGEST_INTEGER_BITS = 8192


class TemplateRefusedError(ChatTemplateError):
    """The template itself says that this conversation is wrong, with `raise_exception`."""


class TemplateLimitError(ChatTemplateError):
    """A template asked for more than it may have."""


@dataclass(frozen=True)
class TemplateLimits:
    """Bounds of a template and of one rendering. Real ones stay below a hundredth of them."""

    template_characters: int = 1 << 18
    output_characters: int = 1 << 23
    built_characters: int = 1 << 28  # all strings and lists on the way, each time one is made
    steps: int = 10_000_000  # turns of loops and calls


class Budget:
    """What one rendering has left."""

    def __init__(self, limits: TemplateLimits) -> None:
        self._limits = limits
        self._steps = limits.steps
        self._characters = limits.built_characters

    def step(self) -> None:
        """Pay for a turn of a loop or for a call."""
        self._steps -= 1
        if self._steps < 0:
            raise TemplateLimitError(
                f"the chat template took more than {self._limits.steps} loop turns and calls"
            )

    def pay(self, num_characters: int) -> None:
        """Pay for something that is about to be built, or just was."""
        self._characters -= num_characters
        if self._characters < 0:
            raise TemplateLimitError(
                "the chat template built more than"
                f" {self._limits.built_characters} characters of text and lists"
            )

    def pay_for(self, value: object) -> None:
        """Pay for a value by its size."""
        if isinstance(value, str):
            self.pay(len(value))
        elif isinstance(value, list | tuple | dict | set):
            self.pay(ITEM_COST * len(value))

    def text(self, value: object) -> str:
        """`str(value)`, paid for; what is nested is measured first, as it may be vast."""
        if isinstance(value, list | tuple | dict):
            self.measure(value)
        text = str(value)
        self.pay(len(text))
        return text

    def measure(self, value: object) -> None:
        """Pay for everything within `value`; what is there twice is paid twice."""
        pending = [value]
        while pending:
            item = pending.pop()
            self.step()
            if isinstance(item, str):
                self.pay(len(item))
            elif isinstance(item, dict):
                pending.extend(item.keys())
                pending.extend(item.values())
            elif isinstance(item, list | tuple):
                pending.extend(item)


current_budget: ContextVar[Budget] = ContextVar("current_budget")


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """Let whatever is rendered within pay out of `budget`."""
    token = current_budget.set(budget)
    try:
        yield
    finally:
        current_budget.reset(token)


def check_width(*values: object) -> None:
    """Refuse to pad, indent or repeat by a number that no prompt needs."""
    for value in values:
        if isinstance(value, int) and abs(value) > LARGEST_WIDTH:
            raise TemplateLimitError(f"a width of {value} is more than {LARGEST_WIDTH}")


class Metering(NodeTransformer):
    """Rewrites what Jinja compiles to plain Python into calls of the environment's own methods."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """`a ~ b` joins what `environment.joined` has paid for."""
        self.generic_visit(node)
        return _call("joined", node.nodes, node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """`a[1:]` copies, unlike `a[1]`."""
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        parts = [nodes.Const(None) if end is None else end for end in ends]
        return _call("sliced", [node.node, *parts], node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """Every turn of a loop pays for itself."""
        return self._with_toll(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        """So does every run of a macro."""
        return self._with_toll(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        """And of a block that is handed to a macro."""
        return self._with_toll(node)

    def _with_toll(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        literal = nodes.Const(sum(_literal_sizes(node.body)))
        toll = nodes.ExprStmt(_call("toll", [literal], node.lineno))
        node.body.insert(0, toll.set_lineno(node.lineno))
        return node


def _literal_sizes(body: list[nodes.Node]) -> Iterable[int]:
    """The lengths of the plain text in `body`, wherever it stands."""
    for statement in body:
        if isinstance(statement, nodes.TemplateData):
            yield len(statement.data)
        for data in statement.find_all(nodes.TemplateData):
            yield len(data.data)


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Expr:
    """A call of a method of the environment."""
    function = nodes.EnvironmentAttribute(method)
    call = nodes.Call(function, arguments, [], None, None)
    call.set_lineno(line)  # of those parts that have none yet
    return call
