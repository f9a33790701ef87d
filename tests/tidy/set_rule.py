"""The rule that the core keeps no sets, because a set's order differs from run to run.

The order follows `hash`, whose key for strings changes with every process, and which for objects is
their address. If a set of sequences is iterated to choose a victim, one seed gives two different
worlds. The rule knows no types, so it allows a set only in places where its order cannot escape.

    len(set(slots)) == len(slots)        counted         fine
    status in {WAITING, RUNNING}         compared        fine
    not held.keys() & set(free)          empty or not    fine
    stop: frozenset[int] = frozenset(s)  of integers     fine: their hash is their value
    seen = set()                         kept            use a dict: its keys keep insertion order
    for x in {a, b}                      iterated        use a tuple

A `frozenset[int]` may be kept, for membership. To be sure that it holds integers, every annotation
must say so, and a call must stand where an annotation names its type (an annotated assignment, a
return, an argument of a function of ours, a default), so that mypy checks it.
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
    """Refuse sets in the core except where their order cannot escape."""
    if not source.in_core:
        return
    parents = {child: node for node in source.nodes for child in ast.iter_child_nodes(node)}
    for node in source.nodes:
        if _is_offence(node, parents):
            message = "a set has no fixed order: use a dict (its keys keep insertion order)"
            yield Offence(source.path, getattr(node, "lineno", 1), message)


def _is_offence(node: ast.AST, parents: Parents) -> bool:
    """Return whether this node creates, or names, a set whose order could escape."""
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
    """Return whether a set is created in a harmless place, or `frozenset[int]` is named."""
    match parents[name]:
        case ast.Call(func=function) as call if function is name:
            return _order_stays_in(call, parents) or (
                name.id == "frozenset" and _type_is_annotated(call, parents)
            )
        case ast.Subscript(slice=ast.Name(id="int")):
            return name.id == "frozenset"
    return False


def _order_stays_in(node: ast.AST, parents: Parents) -> bool:
    """Return whether the set is only counted, compared or tested for emptiness."""
    match parents[node]:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Call(func=ast.Name(id="len")):
            return True
        case ast.BinOp() as operation:
            return _order_stays_in(operation, parents)
    return False


def _type_is_annotated(call: ast.Call, parents: Parents) -> bool:
    """Return whether an annotation fixes the type that this call returns."""
    match parents[call]:
        case ast.AnnAssign() | ast.Return() | ast.keyword() | ast.arguments():
            return True
        case ast.Call(func=ast.Name(id=function)):
            return function not in WALKERS
        case ast.Call():
            return True
    return False


def _is_keys_view(node: ast.AST) -> bool:
    """Return whether this is `x.keys()` or `x.items()`, whose operators create sets."""
    match node:
        case ast.Call(func=ast.Attribute(attr="keys" | "items"), args=[]):
            return True
    return False
