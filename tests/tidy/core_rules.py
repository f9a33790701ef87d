"""Rules that keep the core a pure function of its arguments: equal events give equal plans.

One seed must determine a whole simulated world. So the core only computes: it reads no clock, draws
no random number, and uses no file, thread or socket. Everything from outside is an argument.
set_rule.py forbids sets.
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
        "json",
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
UNCOVERED = ("pragma: no cover", "pragma: no branch")


def core_imports_only_computing(source: Source) -> Iterator[Offence]:
    """Require that the core imports only itself and the computing standard library."""
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
    """Refuse builtins whose result depends on anything but their arguments."""
    if not source.in_core:
        return
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                message = f"{name}() {IMPURE_BUILTINS[name]}; the core must not depend on it"
                yield Offence(source.path, node.lineno, message)


def core_hides_no_branch(source: Source) -> Iterator[Offence]:
    """Refuse lines of the core that are excused from the coverage gate."""
    if not source.in_core:
        return
    for number, line in enumerate(source.lines, start=1):
        if any(pragma in line for pragma in UNCOVERED):
            yield Offence(source.path, number, "write a test for the branch, or delete it")
