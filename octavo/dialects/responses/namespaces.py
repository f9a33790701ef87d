"""Functions in namespaces, and the one name under which the model knows each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from octavo.dialects.common.schema.tools import MAX_TOOL_NAME, MAX_TOOLS, MAX_TOOLS_BYTES
from octavo.dialects.responses.schema import InputFunction, NamespacedFunction
from octavo.transport.errors import invalid, not_yet

NAMESPACE = "namespace"
_SEPARATOR = "__"


@dataclass(frozen=True, slots=True)
class Origin:
    """The names that a request gave to a function."""

    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Flat:
    """A function as the model knows it, and its place in the request's list of tools."""

    function: NamespacedFunction
    place: str
    origin: Origin


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name under which the model knows a function."""
    return f"{namespace}{_SEPARATOR}{name}" if namespace else name


def flattened(tools: Sequence[InputFunction]) -> list[Flat]:
    """Return all functions; raise ApiError for other tools, and for names that do not fit."""
    found, size = list[Flat](), 0
    for index, tool in enumerate(tools):
        for flat in _functions(tool, f"[{index}]"):
            # While they are made: each function repeats the description of its namespace.
            size += len(flat.function.description or "")
            if size > MAX_TOOLS_BYTES:
                raise invalid(
                    f"tools have descriptions of more than {MAX_TOOLS_BYTES} characters; that of a "
                    "namespace counts for each of its functions: shorten it, or describe fewer",
                    "tools",
                )
            found.append(flat)
    if len(found) > MAX_TOOLS:
        raise invalid(
            f"tools have {len(found)} functions, those in namespaces included; at most "
            f"{MAX_TOOLS} are accepted",
            "tools",
        )
    return found


def _functions(tool: InputFunction, place: str) -> Iterator[Flat]:
    if tool.type != NAMESPACE:
        yield _flat(tool, place, None)
        return
    if tool.name is None:
        raise invalid(f"tools{place}.name is missing", f"tools{place}.name")
    if not tool.tools:
        raise invalid(f"tools{place}.tools is missing: it has the functions", f"tools{place}.tools")
    for index, each in enumerate(tool.tools):
        yield _flat(each, f"{place}.tools[{index}]", tool)


def _flat(function: NamespacedFunction, place: str, namespace: InputFunction | None) -> Flat:
    where = f"tools{place}"
    if function.type != "function":
        what = "tools do not run in this server; describe a function, which the client calls"
        raise not_yet(f"{where}.type", f"{function.type[:64]!r} is not supported: {what}")
    if function.name is None:
        raise invalid(f"{where}.name is missing", f"{where}.name")
    if namespace is None:
        return Flat(function, place, Origin(function.name))
    name = flat_name(namespace.name, function.name)
    if len(name) > MAX_TOOL_NAME:
        raise invalid(
            f"{where}.name: the model knows it as {name!r}, which has {len(name)} characters; at "
            f"most {MAX_TOOL_NAME} are accepted",
            f"{where}.name",
        )
    described = "\n".join(filter(None, (namespace.description, function.description)))
    known = replace(function, name=name, description=described or None)
    return Flat(known, place, Origin(function.name, namespace.name or ""))


def origins_of(tools: Sequence[InputFunction] | None) -> Mapping[str, Origin]:
    """Return the names that a request gave to its functions, by those that the model knows."""
    if not any(tool.type == NAMESPACE for tool in tools or ()):
        return {}
    return {flat.function.name or "": flat.origin for flat in flattened(tools or ())}


def chosen(name: str | None, where: str, functions: Sequence[Flat]) -> str:
    """Return the name that the model knows for one that a request chooses, with or without its
    namespace; raise ApiError if there is none, or more than one.
    """
    names = [flat.function.name or "" for flat in functions]
    if name in names:
        return name
    found = [flat.function.name or "" for flat in functions if flat.origin.name == name]
    if not found:
        raise invalid(f"{where}: {name!r} is not among tools", where)
    if len(found) > 1:
        raise invalid(f"{where}: {name!r} is in several namespaces: {', '.join(found)}", where)
    return found[0]
