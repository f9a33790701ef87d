"""The model or adapter that a request selects by its names: the one place that maps these."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from octavo.nearest import nearest
from octavo.serving.adapters.registry import Adapter
from octavo.serving.schema.model_names import AskedModel
from octavo.transport.errors import ApiError, invalid

if TYPE_CHECKING:
    from octavo.serving.server import Server

ANY_MODEL = "tgi"  # what users of text-generation-inference call the model that is served
NOT_FOUND = "model_not_found"
_MOST_NAMES = 8  # in an error
_MOST_COMPARED = 1000  # adapters whose names are compared with an unknown one


class Selection(NamedTuple):
    """The model or adapter that a request has selected."""

    name: str  # as the answer has it
    adapter: Adapter | None = None
    scale: float = 1.0


async def select(server: Server, asked: AskedModel) -> Selection:
    """Return what a request selects; raise an ApiError of status 404 for a name that is unknown.

    An unknown name is asked of the operator's resolver, if there is one.
    """
    found = known(server, asked)
    if found is None and server.resolver is not None:
        for name in _wanted(server, asked):
            if await server.resolver.find(server.model_name, name) is not None:
                found = known(server, asked)
                break
    if found is None:
        raise unknown(server, asked)
    return found


def known(server: Server, asked: AskedModel) -> Selection | None:
    """Return what a request selects among the names that there are; None for an unknown one."""
    adapters, name = server.adapters, server.model_name
    if asked.adapter:
        adapter = adapters.get(asked.adapter)
        is_model = not asked.names or any(_is_model(server, each) for each in asked.names)
        if adapter is None or not (is_model or adapter.name in asked.names):
            return None
        return _selected(server, adapter, asked.scales)
    adapter = next((found for each in asked.names if (found := _named(server, each))), None)
    if adapter is not None:
        return _selected(server, adapter, asked.scales)
    if asked.names and not any(_is_model(server, each) for each in asked.names):
        return None
    if asked.scales is not None:
        return scaled(server, asked.scales)
    if adapters.applied is not None:
        return Selection(name, *adapters.applied)
    return Selection(name)


def _selected(
    server: Server, adapter: Adapter, scales: tuple[tuple[int, float], ...] | None
) -> Selection:
    """Return an adapter that is named, with the scale that its number has; refuse another's."""
    chosen = scaled(server, scales or ())
    if chosen.adapter is adapter:
        return Selection(adapter.name, adapter, chosen.scale)
    if chosen.adapter is not None:
        raise invalid(
            f"lora: a request has one adapter, and it names {adapter.name!r}, whose id is "
            f"{adapter.number}, beside a scale of {chosen.adapter.name!r}: leave one of them out",
            "lora",
            "unsupported_parameter",
        )
    if any(number == adapter.number for number, _ in scales or ()):
        return Selection(adapter.name)  # with a scale of 0
    return Selection(adapter.name, adapter, adapter.scale)


def scaled(server: Server, scales: tuple[tuple[int, float], ...]) -> Selection:
    """Return the one adapter whose scale is not zero, or none."""
    chosen: list[Selection] = []
    for number, scale in scales:
        adapter = server.adapters.numbered(number)
        if adapter is None:
            raise invalid(
                f"lora: there is no adapter with the id {number}; GET /lora-adapters lists them",
                "lora",
            )
        if scale:
            chosen.append(Selection(server.model_name, adapter, scale))
    if len(chosen) > 1:
        names = " and ".join(repr(each.adapter.name) for each in chosen[:2] if each.adapter)
        raise invalid(
            f"lora: a request has one adapter, and {names} both have a scale that is not 0: leave "
            "one of them out",
            "lora",
            "unsupported_parameter",
        )
    return chosen[0] if chosen else Selection(server.model_name)


def _is_model(server: Server, name: str) -> bool:
    is_any = server.config.any_model_name or name == ANY_MODEL
    return is_any or name in server.model_names


def _named(server: Server, name: str) -> Adapter | None:
    """Return the adapter of a name, or of one behind the model's, as in SGLang."""
    found = server.adapters.get(name)
    if found is not None or ":" not in name:
        return found
    behind = _behind_model(server, name)
    return server.adapters.get(behind) if behind else None


def _behind_model(server: Server, name: str) -> str:
    """Return what stands behind the model's name and a colon."""
    for model in server.model_names:
        if name.startswith(f"{model}:"):
            return name[len(model) + 1 :]
    return ""


def _wanted(server: Server, asked: AskedModel) -> list[str]:
    """Return the unknown names that may be those of adapters."""
    names = [asked.adapter] if asked.adapter else asked.names
    return [_behind_model(server, each) or each for each in names]


def unknown(server: Server, asked: AskedModel) -> ApiError:
    """Return the error for a name that neither the model nor an adapter has."""
    name, param = (asked.adapter, asked.adapter_param) if asked.adapter else (asked.names[0], "")
    names = [*server.model_names[:_MOST_NAMES]]
    adapters = [each.name for each in server.adapters][:_MOST_COMPARED]
    near = nearest(name, [*server.model_names, *adapters], most=2)
    there = " or ".join(map(repr, names))
    if adapters:
        there += f", and {len(server.adapters)} adapters, which GET /v1/models lists"
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near and adapters else ""
    what = f"{param}: the adapter" if asked.adapter else "the model"
    return ApiError(
        404,
        f"{what} {name[:200]!r} does not exist; this server has {there}{hint}",
        param=param or asked.param,
        code=NOT_FOUND,
    )
