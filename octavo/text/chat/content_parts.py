"""Whether a chat template reads a message's content as a list of parts, or only as a text.

Told from its syntax: it does if it loops over what is, or was taken from, some `content`.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import Environment, nodes
from jinja2.ext import loopcontrols

from octavo.text.chat.sandbox import GenerationTag

# Filters that look into the items of a list, and others that give a list as well.
INTO_ITEMS = frozenset({"groupby", "map", "rejectattr", "selectattr"})
MOST_DETOURS = 4  # of a content against the order of the source, from macro to macro
LISTS = INTO_ITEMS | {"list", "reject", "reverse", "select", "sort", "unique"}


def reads_parts(source: str) -> bool:
    """Of a template that compiles."""
    tree = Environment(extensions=[GenerationTag, loopcontrols]).parse(source)
    every = list(_walk(tree))
    macros = {node.name: node for node in every if isinstance(node, nodes.Macro)}
    names: set[str] = set()  # variables that hold some message's content
    for _ in range(MOST_DETOURS):
        num_known = len(names)
        for node in every:
            _add_names(node, macros, names)
        if len(names) == num_known:
            break
    return any(_looks_into(node, names) for node in every)


def _walk(tree: nodes.Node) -> Iterator[nodes.Node]:
    """Every node, in the order of the source."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(list(node.iter_child_nodes())))


def _add_names(node: nodes.Node, macros: dict[str, nodes.Macro], names: set[str]) -> None:
    """A variable that is set to a content, or parameters of a macro that are given one."""
    if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name):
        if _is_content(node.node, names):
            names.add(node.target.name)
    elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
        macro = macros.get(node.node.name)
        parameters = [] if macro is None else [name.name for name in macro.args]
        given = [*zip(parameters, node.args, strict=False)]
        given += [(pair.key, pair.value) for pair in node.kwargs if pair.key in parameters]
        names.update(name for name, value in given if _is_content(value, names))


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    match node:
        case nodes.Name():
            return node.name in names
        case nodes.Getattr():
            return node.attr == "content"
        case nodes.Getitem(arg=nodes.Const(value=key)):
            return bool(key == "content")
        case nodes.Getitem(arg=nodes.Slice()):
            return _is_content(node.node, names)
        case nodes.Filter():
            return node.name in LISTS and _is_content(node.node, names)
        case nodes.CondExpr():
            return _is_content(node.expr1, names) or _is_content(node.expr2, names)
        case nodes.And() | nodes.Or():
            return _is_content(node.left, names) or _is_content(node.right, names)
    return False


def _looks_into(node: nodes.Node, names: set[str]) -> bool:
    match node:
        case nodes.For():
            return _is_content(node.iter, names)
        case nodes.Filter():
            return node.name in INTO_ITEMS and _is_content(node.node, names)
        case nodes.Getitem(arg=nodes.Const(value=key)):
            return isinstance(key, int) and _is_content(node.node, names)
    return False
