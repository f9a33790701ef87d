"""The cells of the matrix: each request in each way, generated from the table of routes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from octavo.dialects.grpc.dialect import STREAM
from octavo.dialects.grpc.routes import GRPC_ROUTES
from octavo.server.routes import ROUTES
from octavo.serving.batches.calls import batch_urls
from octavo.serving.durable import head
from octavo.transport.route import Route

# The structs from which an answer is generated, as the routes have registered them.
STRUCTS = [struct for struct, _ in head._TRANSLATIONS.values()]
KINDS = {struct.__name__: struct for struct in STRUCTS}


def _modules() -> list[Any]:
    """Return the module `bodies` of each dialect's folder of tests that has one."""
    paths = sorted(Path(__file__).parents[1].glob("*/bodies.py"))
    return [import_module(f"tests.server.{path.parent.name}.bodies") for path in paths]


ADAPTER = "sql"  # the name of the only one
# A body for each struct from which an answer is generated, without what the axes set.
BODIES: dict[str, dict[str, Any]] = {
    kind: body for module in _modules() for kind, body in module.BODIES.items()
}
# Where the answers of some dialects alone have what was generated or computed.
FURTHER_PLACES: tuple[tuple[str, ...], ...] = tuple(
    place for module in _modules() for place in getattr(module, "PLACES", ())
)
# Requests that are answered with the same text, in the words of several dialects.
ALIKE: tuple[frozenset[str], ...] = (
    frozenset(
        {
            *("CompletionRequest", "LlamaCompletionRequest", "RpcGenerateRequest"),
            *("TgiRequest", "TgiGenerateRequest", "TgiStreamRequest"),
        }
    ),
    frozenset(
        {
            *("ChatRequest", "LlamaChatRequest", "MessagesRequest", "ResponsesRequest"),
            *("OllamaChatRequest", "OllamaGenerateRequest", "CohereChatRequest"),
        }
    ),
    frozenset({"RerankRequest", "CohereRerankRequest"}),
)


class Size(StrEnum):
    """The size of a body: a large one is read in a prompt worker."""

    SMALL = "small"
    LARGE = "large"


class Form(StrEnum):
    """The form of the answer."""

    WHOLE = "whole"
    STREAM = "stream"


class Way(StrEnum):
    """The way in which a request reaches the server, and what the server keeps of it."""

    PLAIN = "plain"
    JOURNAL = "journal"
    BATCH = "batch"
    BACKGROUND = "background"


class Fate(StrEnum):
    """An event while the answer is computed."""

    STAYS = "stays"
    LEAVES = "leaves"
    DIES = "dies"


class Drawn(StrEnum):
    """The way in which tokens are drawn: from the text alone, or by a sampler with a state."""

    PLAINLY = "plainly"
    MIROSTAT = "mirostat"


class Asked(StrEnum):
    """The kind of name by which a request asks for an answer."""

    MODEL = "model"
    ADAPTER = "adapter"


@dataclass(frozen=True, slots=True)
class Cell:
    """One request, and how it is asked."""

    kind: str
    size: Size
    form: Form
    way: Way
    fate: Fate
    asked: Asked = Asked.MODEL
    drawn: Drawn = Drawn.PLAINLY

    def __str__(self) -> str:
        return "-".join(map(str, self.values.values()))

    @property
    def values(self) -> dict[str, str]:
        """The value on each axis."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def route_of(kind: str, form: Form = Form.WHOLE) -> Route:
    """Return the route that answers a kind of request in a form."""
    struct = KINDS[kind]
    if kind.startswith("Rpc"):
        own = [each for each in GRPC_ROUTES if struct in getattr(each.handler, "args", ())]
        return next((each for each in own if each.path.endswith(STREAM) is _streams(form)), own[0])
    return next(each for each in ROUTES if each.request is struct and (each.response or each.chunk))


def _streams(form: Form) -> bool:
    return form is Form.STREAM


def is_possible(cell: Cell) -> bool:
    """Return whether the routes and structs have what a cell asks for."""
    struct = KINDS[cell.kind]
    route = route_of(cell.kind, cell.form)
    if cell.form is Form.STREAM and route.chunk is None and not route.path.endswith(STREAM):
        return False
    if cell.drawn is Drawn.MIROSTAT and _samplers_in(cell.kind) is None:
        return False
    match cell.way:
        case Way.BATCH:  # whose lines have no stream and no client that could leave
            is_one = cell.form is Form.WHOLE and cell.fate is not Fate.LEAVES
            return is_one and route.path in batch_urls(ROUTES)
        case Way.BACKGROUND:  # whose whole answer is fetched when it has ended
            has_client = cell.form is Form.STREAM or cell.fate is not Fate.LEAVES
            return has_client and "background" in struct.__struct_fields__
    return True


def _samplers_in(kind: str) -> tuple[str, ...] | None:
    """Return where a request of a kind has the fields of samplers; None: it has none."""
    inner = {"OllamaChatRequest": "options", "OllamaGenerateRequest": "options"}
    if kind in inner:
        return (inner[kind],)
    if kind == "RpcGenerateRequest":
        return ("sampling_params",)
    return () if "mirostat" in KINDS[kind].__struct_fields__ else None


def every_cell() -> list[Cell]:
    """Return all cells that are possible."""
    axes = product(sorted(KINDS), Size, Form, Way, Fate, Asked, Drawn)
    return [each for each in (Cell(*values) for values in axes) if is_possible(each)]


def body_of(cell: Cell) -> bytes:
    """Return the request of a cell as JSON."""
    struct = KINDS[cell.kind]
    body = dict(BODIES[cell.kind])
    if "stream" in struct.__struct_fields__:
        body["stream"] = _streams(cell.form)
    if cell.way is Way.BACKGROUND:
        body["background"] = True
    if cell.asked is Asked.ADAPTER:
        body["model"] = ADAPTER
    if cell.drawn is Drawn.MIROSTAT:
        fields = body
        for name in _samplers_in(cell.kind) or ():
            fields[name] = fields = dict(fields[name])
        fields |= {"mirostat": 2, "temperature": 1, "seed": 7}
    return msgspec.json.encode(body)
