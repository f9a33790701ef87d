"""Rules that keep the core a pure function of its arguments: same events in, same plans out.

One seed must fix a whole simulated world. So the core may compute and nothing else: it asks no
clock, draws no random number, touches no file, thread or socket, and never lets an order that
differs from run to run decide anything. Python's `set` has such an order (it follows `hash`, which
for strings is keyed anew in every process, and for objects is their address); dicts keep insertion
order and do the same job. What the core needs from outside is passed to it.
"""

import ast
from collections.abc import Iterator

from tests.tidy.source import Offence, Source

# The standard library's computing part. What is not here acts on the world (os, io, socket,
# threading, logging …), asks it something (time, random, secrets, uuid, platform …), or depends on
# when memory is freed (weakref, gc). A new line needs a reason of the same kind.
ALLOWED_MODULES = frozenset(
    {
        "__future__",
        "abc",
        "array",
        "bisect",
        "collections",
        "collections.abc",
        "contextlib",
        "dataclasses",
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "hmac",
        "itertools",
        "math",
        "operator",
        "string",
        "struct",
        "types",
        "typing",
    }
)
IMPURE_BUILTINS = {
    "breakpoint": "stops the process",
    "globals": "reaches around the arguments",
    "hash": "differs from process to process for strings",
    "id": "is an address and differs from run to run",
    "input": "asks the outside world",
    "open": "touches a file",
    "print": "writes to the outside world",
    "vars": "reaches around the arguments",
}
SET_TYPES = frozenset({"AbstractSet", "MutableSet", "Set", "set"})
# Builtins that take any iterable and walk it, so that an argument's type is not fixed.
WALKERS = frozenset(
    {"all", "any", "dict", "enumerate", "iter", "list", "map", "max", "min", "reversed", "sorted"}
    | {"frozenset", "sum", "tuple", "zip"}
)
UNCOVERED = ("pragma: no cover", "pragma: no branch")


def core_imports_only_computing(source: Source) -> Iterator[Offence]:
    """The core imports itself and the computing part of the standard library, nothing else."""
    if not source.in_core:
        return
    for node in source.nodes:
        match node:
            case ast.Import(names=aliases):
                modules = [alias.name for alias in aliases]
            case ast.ImportFrom(level=0, module=str(module)):
                modules = [module]
            case ast.ImportFrom(level=level, module=module):
                modules = ["." * level + (module or "")]
            case _:
                continue
        for module in modules:
            if module not in ALLOWED_MODULES and not f"{module}.".startswith("octavo.core."):
                message = f"the core may not import {module}; take what it gives as an argument"
                yield Offence(source.path, node.lineno, message)


def core_calls_nothing_impure(source: Source) -> Iterator[Offence]:
    """No builtin whose answer depends on anything but its arguments."""
    if not source.in_core:
        return
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                message = f"{name}() {IMPURE_BUILTINS[name]}; the core must not depend on it"
                yield Offence(source.path, node.lineno, message)


def core_keeps_no_sets(source: Source) -> Iterator[Offence]:
    """No sets; `x in {A, B}` and `frozenset[int]` are harmless and allowed.

    A literal set on the right of `in` is never walked. The order of a set of integers is a function
    of the integers, so `frozenset[int]` may serve for membership (stop tokens); every mention of
    frozenset must say so: in an annotation by its parameter, and a call must stand where an
    annotation names its type (an annotated assignment, an argument, a default, a return).
    """
    if not source.in_core:
        return
    fine = set(_harmless(source))
    for node in source.nodes:
        match node:
            case ast.Set() | ast.SetComp():
                found = node not in fine
            case ast.Name(id=name):
                found = name in SET_TYPES or (name == "frozenset" and node not in fine)
            case ast.ImportFrom(names=aliases):
                found = any(alias.name in SET_TYPES for alias in aliases)
            case ast.BinOp(left=left, right=right):
                found = _is_keys_view(left) or _is_keys_view(right)
            case _:
                continue
        if found:
            message = "a set has no fixed order: use a dict (its keys keep insertion order)"
            yield Offence(source.path, node.lineno, message)


def _harmless(source: Source) -> Iterator[ast.AST]:
    """The sets and the mentions of `frozenset` which the rule above allows."""
    for node in source.nodes:
        match node:
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[ast.Set() as literal]):
                yield literal
            case ast.Subscript(value=ast.Name(id="frozenset") as name, slice=ast.Name(id="int")):
                yield name
        for value in _annotated_values(node):
            match value:
                case ast.Call(func=ast.Name(id="frozenset") as name):
                    yield name


def _annotated_values(node: ast.AST) -> Iterator[ast.AST | None]:
    """The expressions in this node whose type an annotation fixes and mypy therefore checks."""
    match node:
        case ast.AnnAssign(value=value) | ast.Return(value=value) | ast.keyword(value=value):
            yield value
        case ast.Call(func=function, args=args) if not isinstance(function, ast.Name) or (
            function.id not in WALKERS
        ):
            yield from args
        case ast.arguments(defaults=defaults, kw_defaults=kw_defaults):
            yield from (*defaults, *kw_defaults)


def _is_keys_view(node: ast.AST) -> bool:
    """Whether this is `x.keys()` or `x.items()`: between two of them an operator makes a set."""
    match node:
        case ast.Call(func=ast.Attribute(attr="keys" | "items"), args=[]):
            return True
    return False


def core_hides_no_branch(source: Source) -> Iterator[Offence]:
    """The coverage gate means what it says: no line of the core is excused from it."""
    if not source.in_core:
        return
    for number, line in enumerate(source.lines, start=1):
        if any(pragma in line for pragma in UNCOVERED):
            yield Offence(source.path, number, "write a test for the branch, or delete it")
