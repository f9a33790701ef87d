"""Detection of chat templates that read a message's content as a list of parts.

The syntax shows it: such a template loops over, or indexes, a value that comes from some `content`.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import Environment, nodes
from jinja2.ext import loopcontrols

from octavo.text.chat.sandbox import GenerationTag

# Filters that read the items of a list, and with them all filters that return a list.
ITEM_FILTERS = frozenset({"groupby", "map", "rejectattr", "selectattr"})
MAX_PASSES = 4  # each follows content one step further against the order of the source
LIST_FILTERS = ITEM_FILTERS | {"list", "reject", "reverse", "select", "sort", "unique"}


def reads_parts(source: str) -> bool:
    """Return whether a template that compiles reads content as a list of parts."""
    tree = Environment(extensions=[GenerationTag, loopcontrols]).parse(source)
    found = list(_walk(tree))
    macros = {node.name: node for node in found if isinstance(node, nodes.Macro)}
    names: set[str] = set()  # variables that hold some message's content
    for _ in range(MAX_PASSES):
        num_known = len(names)
        for node in found:
            _add_names(node, macros, names)
        if len(names) == num_known:
            break
    return any(_reads_items(node, names) for node in found)


def _walk(tree: nodes.Node) -> Iterator[nodes.Node]:
    """Iterate over all nodes in the order of the source."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(list(node.iter_child_nodes())))


def _add_names(node: nodes.Node, macros: dict[str, nodes.Macro], names: set[str]) -> None:
    """Add a variable that is set to content, or parameters of a macro that receive it."""
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
            return node.name in LIST_FILTERS and _is_content(node.node, names)
        case nodes.CondExpr():
            return _is_content(node.expr1, names) or _is_content(node.expr2, names)
        case nodes.And() | nodes.Or():
            return _is_content(node.left, names) or _is_content(node.right, names)
    return False


def _reads_items(node: nodes.Node, names: set[str]) -> bool:
    match node:
        case nodes.For():
            return _is_content(node.iter, names)
        case nodes.Filter():
            return node.name in ITEM_FILTERS and _is_content(node.node, names)
        case nodes.Getitem(arg=nodes.Const(value=key)):
            return isinstance(key, int) and _is_content(node.node, names)
    return False
