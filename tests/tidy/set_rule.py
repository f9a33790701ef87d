"""The rule that the core keeps no sets, because a set's order differs from run to run.

The order follows `hash`, which for strings is keyed anew in every process and for objects is their
address. Walk a set of sequences to choose a victim, and the same seed gives two different worlds.
Types are not known here, so the rule is about places: a set may be made where its order cannot get
out, and nowhere else.

    len(set(slots)) == len(slots)        counted         fine
    status in {WAITING, RUNNING}         compared        fine
    not held.keys() & set(free)          empty or not    fine
    stop: frozenset[int] = frozenset(s)  of integers     fine: their hash is their value
    seen = set()                         kept            use a dict: its keys keep insertion order
    for x in {a, b}                      walked          use a tuple

A `frozenset[int]` may be kept, for membership. So that it is one of integers, every annotation must
say so, and a call must stand where an annotation names its type (an annotated assignment, a return,
an argument of a function of ours, a default) and mypy therefore checks it.
"""

import ast
from collections.abc import Iterator

from tests.tidy.source import Offence, Source

SET_TYPES = frozenset({"AbstractSet", "MutableSet", "Set", "set"})
MAKERS = frozenset({"frozenset", "set"})
# Builtins that walk any iterable: an argument of theirs has no type that an annotation fixed.
WALKERS = frozenset(
    {"all", "any", "dict", "enumerate", "filter", "frozenset", "iter", "list", "map", "max", "min"}
    | {"next", "reversed", "set", "sorted", "sum", "tuple", "zip"}
)
Parents = dict[ast.AST, ast.AST]


def core_keeps_no_sets(source: Source) -> Iterator[Offence]:
    """A set may be made in the core only where its order cannot get out."""
    if not source.in_core:
        return
    parents = {child: node for node in source.nodes for child in ast.iter_child_nodes(node)}
    for node in source.nodes:
        if _is_offence(node, parents):
            message = "a set has no fixed order: use a dict (its keys keep insertion order)"
            yield Offence(source.path, getattr(node, "lineno", 1), message)


def _is_offence(node: ast.AST, parents: Parents) -> bool:
    """Whether this node makes, or names, a set whose order could get out."""
    match node:
        case ast.Set() | ast.SetComp():
            return not _order_stays_in(node, parents)
        case ast.BinOp(left=left, right=right) if _is_keys_view(left) or _is_keys_view(right):
            return not _order_stays_in(node, parents)
        case ast.Name(id=name) if name in SET_TYPES | MAKERS:
            return not _is_decent_mention(node, parents)
        case ast.ImportFrom(names=aliases):
            return any(alias.name in SET_TYPES for alias in aliases)
    return False


def _is_decent_mention(name: ast.Name, parents: Parents) -> bool:
    """Whether `set` or `frozenset` is called in a harmless place, or says `frozenset[int]`."""
    match parents[name]:
        case ast.Call(func=function) as call if function is name:
            return _order_stays_in(call, parents) or (
                name.id == "frozenset" and _type_is_annotated(call, parents)
            )
        case ast.Subscript(slice=ast.Name(id="int")):
            return name.id == "frozenset"
    return False


def _order_stays_in(node: ast.AST, parents: Parents) -> bool:
    """Whether all that is done with this set is counting, comparing or asking if it is empty."""
    match parents[node]:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Call(func=ast.Name(id="len")):
            return True
        case ast.BinOp() as operation:
            return _order_stays_in(operation, parents)
    return False


def _type_is_annotated(call: ast.Call, parents: Parents) -> bool:
    """Whether an annotation fixes the type of what this call returns."""
    match parents[call]:
        case ast.AnnAssign() | ast.Return() | ast.keyword() | ast.arguments():
            return True
        case ast.Call(func=ast.Name(id=function)):
            return function not in WALKERS
        case ast.Call():
            return True
    return False


def _is_keys_view(node: ast.AST) -> bool:
    """Whether this is `x.keys()` or `x.items()`: between two of them an operator makes a set."""
    match node:
        case ast.Call(func=ast.Attribute(attr="keys" | "items"), args=[]):
            return True
    return False
