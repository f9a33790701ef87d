"""A server over a stand-in engine in another process, which answers the cells of the matrix."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import octavo
from octavo.adapter_copies.copies import AdapterCopies
from octavo.api.async_llm import AsyncLLM
from octavo.api.text_model import files_of
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import make_client
from octavo.dialects.common.dialect import OPENAI
from octavo.dialects.grpc.dialect import GRPC, SERVICE, frames_in
from octavo.dialects.grpc.messages import messages
from octavo.dialects.grpc.routes import GRPC_ROUTES
from octavo.observe.loop_lag import LoopLag
from octavo.options.engine import EngineArguments
from octavo.options.named_adapters import NamedAdapter
from octavo.server.application import application
from octavo.server.routes import DEFAULT_DIALECT, ROUTES
from octavo.serving.batches.calls import Calls
from octavo.serving.batches.service import Batches
from octavo.serving.batches.store import Store
from octavo.serving.durable.service import Durability
from octavo.serving.exchange import Exchange
from octavo.serving.operation import GenerationRequest, PreparedRequest
from octavo.serving.schema.decode import MAX_FAST_BYTES
from octavo.serving.server import Server
from tests.client import clients
from tests.server.adapters.make import write_adapter
from tests.server.batches.make import begin, ended, lines_of
from tests.server.make import LIMIT, Client, patient, until
from tests.server.matrix.cells import (
    ADAPTER,
    FURTHER_PLACES,
    Cell,
    Fate,
    Form,
    Size,
    Way,
    body_of,
    route_of,
)
from tests.server.matrix.engine import FACTORY
from tests.sim.shell.connection import Connection

# Where answers have what was generated or computed; lists on the way are followed.
PLACES = (
    *(("choices", "text"), ("choices", "message", "content"), ("choices", "delta", "content")),
    *(("choices", "token_ids"), ("content", "text"), ("delta", "text"), ("delta",)),
    *(("output", "content", "text"), ("message", "content"), ("response",), ("content",)),
    ("embedding",),
    *(("data", "embedding"), ("data", "data"), ("data", "probs"), ("data", "score")),
    *(("results", "index"), ("results", "relevance_score"), ("embeddings",)),
    *(("score",), ()),
    *FURTHER_PLACES,
)
_OF_REQUESTS = (Exchange, GenerationRequest, PreparedRequest)
_HOME = str(Path(octavo.__path__[0]))
NOT_HELD = b"\0"
_UNFINISHED = ("queued", "in_progress")
# Engines are killed one after the other; some have produced no token, only vectors.
_TIMING = clients.patient(max_failed_engines=1 << 30, restart_delay_seconds=0.0)
_UNLIMITED = 1 << 30


class TrustingLLM(AsyncLLM):
    """An AsyncLLM whose stand-in engine has no adapters to check."""

    async def load_adapter(self, digest: str, place: Path) -> bool:
        """Accept every adapter without a look."""
        return True


class World:
    """A server with a journal or with batches, in an event loop that runs while it is used."""

    def __init__(self, directory: Path, files: Path, *, has_journal: bool) -> None:
        self._gate, self._held = files / "gate", files / "held"
        self._held.write_bytes(NOT_HELD)
        model = f"matrix?gate={self._gate}&held={self._held}"
        self._adapter = write_adapter(files / ADAPTER, 1)
        arguments = EngineArguments(model=model, tokenizer=str(directory), enable_lora=True)
        self._client = make_client(arguments, [ProcessLauncher(FACTORY)], _TIMING)
        self._client.start()
        source = files_of(self._client.facts)
        copies = AdapterCopies(1 << 20, 1 << 18, files / "copies")
        self.llm = TrustingLLM.over(self._client, arguments, source=source, copies=copies)
        limits: dict[str, Any] = {}
        if has_journal:
            limits["journal"] = files / "journal"
        else:
            limits["batch_dir"] = files
        self.server = Server(self.llm, patient(**limits))
        self._applications = {
            True: application(self.server, GRPC_ROUTES, GRPC),
            False: application(self.server, ROUTES),
        }
        self._num_asked = 0
        self._has_died = False  # the engine, since these cells are asked
        self._num_dying = 0  # cells whose engine is to be killed, without those of batches
        self.stalls: list[float] = []
        self._lag = LoopLag(self.stalls.append)

    async def open(self) -> None:
        """Attach the engine, and start the service of the journal or of batches."""
        if self.server.config.journal is not None:
            self.server.durability = Durability.open(self.server)
            self.llm.attach()
            self.server.durability.start()
        else:
            assert self.server.config.batch_dir is not None
            calls = Calls(self.server, ROUTES, DEFAULT_DIALECT)
            self.server.batches = Batches(self.server, Store(self.server.config.batch_dir), calls)
            self.llm.attach()
            self.server.batches.start()
        adapter = NamedAdapter(ADAPTER, str(self._adapter))
        await self.server.adapters.add(adapter, "operator")
        self._lag.start()

    async def close(self) -> None:
        """End all that was opened."""
        self._lag.stop()
        self.server.is_draining = True
        for service in (self.server.durability, self.server.batches):
            if service is not None:
                await service.close()
        self.server.adapters.close()
        await self.server.prompt_pool.close()
        self.llm.close()

    async def answers(self, cells: Sequence[Cell]) -> list[str]:
        """Ask at once as several cells say, and return what was answered in the end."""
        if any(cell.fate is not Fate.STAYS for cell in cells):
            self._gate.touch()
        dying = [cell for cell in cells if cell.fate is Fate.DIES]
        self._has_died = False
        self._num_dying = sum(cell.way is not Way.BATCH for cell in dying)
        try:
            return await asyncio.gather(*map(self._answer, cells))
        finally:
            self._open()

    async def _answer(self, cell: Cell) -> str:
        self._num_asked += 1
        name = f"cell-{self._num_asked}"
        match cell.way:
            case Way.BATCH:
                return await self._from_batch(cell)
            case Way.BACKGROUND:
                return await self._from_background(cell, name)
        return await self._from_route(cell, name)

    # ways to ask

    async def _from_route(self, cell: Cell, name: str) -> str:
        """Ask over a connection; a client that has left asks again under the same id."""
        received = await self._sent(cell, name)
        if cell.fate is Fate.LEAVES:
            received = await self._finished(*self._send(cell, name))
        return said(received, route_of(cell.kind, cell.form).path)

    async def _from_background(self, cell: Cell, name: str) -> str:
        """Ask for a response in the background, and fetch it when it has ended."""
        received = await self._sent(cell, name)
        if cell.form is Form.STREAM and cell.fate is not Fate.LEAVES:
            assert said(received, route_of(cell.kind).path)
        path = f"/v1/responses/resp_{name}"
        async with asyncio.timeout(LIMIT), Client(self.server) as client:
            while (found := (await client.get(path)).json())["status"] in _UNFINISHED:
                await asyncio.sleep(0.002)
        assert found["status"] == "incomplete"  # it has reached its length
        return said_in(found)

    async def _from_batch(self, cell: Cell) -> str:
        """Ask in a batch of one line, and return what its line of results has."""
        path = route_of(cell.kind).path
        line = b'{"custom_id":"x","method":"POST","url":"%b","body":%b}\n'
        text = (line % (path.encode(), _message_of(cell))).decode()
        async with Client(self.server) as client:
            batch = await begin(client, text, endpoint=path)
            if cell.fate is Fate.DIES:
                await self._kill()
            found = await ended(client, batch["id"])
            assert await lines_of(client, found["error_file_id"]) == []
            (result,) = await lines_of(client, found["output_file_id"])
        assert result["response"]["status_code"] == 200
        return said_in(result["response"]["body"])

    # the connection

    def _send(self, cell: Cell, name: str) -> tuple[Connection, asyncio.Task[None]]:
        path, body = route_of(cell.kind, cell.form).path, _message_of(cell)
        connection = Connection(name, "POST", path, body, high_water=_UNLIMITED)
        is_rpc = cell.kind.startswith("Rpc")
        dialect, head = GRPC if is_rpc else OPENAI, connection.head
        exchange = Exchange(self.server, head, connection, dialect, connection.receive)
        called = self._applications[is_rpc].answer(exchange)
        return connection, asyncio.ensure_future(called)

    async def _sent(self, cell: Cell, name: str) -> bytes:
        """Send a request, let its fate happen, and return what its client has received."""
        connection, task = self._send(cell, name)
        if cell.fate is Fate.LEAVES:
            await self._until_held()
            async with asyncio.timeout(LIMIT):
                if cell.form is Form.STREAM:
                    reading = asyncio.ensure_future(connection.read(0.0))
                    await until(lambda: bool(connection.received))
                    connection.close()
                    await reading
                connection.close()
                self._open()
                await task
            return connection.received
        if cell.fate is Fate.DIES:
            await self._kill()
        return await self._finished(connection, task)

    async def _finished(self, connection: Connection, task: asyncio.Task[None]) -> bytes:
        """Read an answer to its end; it is well, and complete."""
        async with asyncio.timeout(LIMIT):
            await connection.read(0.0)
            await task
        assert connection.status == 200, connection.received
        assert connection.is_whole
        assert not connection.was_cut
        return connection.received

    # the engine

    async def _until_held(self) -> None:
        await until(lambda: self._held.read_bytes() != NOT_HELD or not self._gate.exists())

    async def _kill(self) -> None:
        """Kill the engine when it has all requests and is in the middle of an answer.

        Several cells kill one engine, and the next one lets all pass. Not all batches run at once.
        """
        await until(lambda: self._has_died or self._num_active == self._num_dying)
        await self._until_held()
        if not self._has_died:
            self._has_died = True
            clients.process_of(self._client).kill()
            self._open()

    @property
    def _num_active(self) -> int:
        return sum(not each.is_background for each in self.server.active.values())

    def _open(self) -> None:
        self._gate.unlink(missing_ok=True)
        with self._held.open("r+b") as file:  # which engines have mapped
            file.write(NOT_HELD)


def _message_of(cell: Cell) -> bytes:
    """Return the body of a cell; white space or an unknown field makes it large."""
    body = body_of(cell)
    padding = MAX_FAST_BYTES if cell.size is Size.LARGE else 0
    if not cell.kind.startswith("Rpc"):
        return body[:-1] + b" " * padding + body[-1:]
    kind = getattr(messages(), _method_of(route_of(cell.kind).path).input_type.name)
    message: bytes = kind(**json.loads(body)).SerializeToString()
    for _ in range(padding // 64):
        message += b"\xa2\x06\x3d" + b" " * 61  # field 100, with its length
    return message


def said(received: bytes, path: str) -> str:
    """Return the generated parts of a route's response, in any dialect and form."""
    if path.startswith(f"/{SERVICE}/"):
        return "".join(said_in(_plain(data, path)) for _, data in frames_in(received))
    if received.startswith((b"data: ", b"event: ", b"id: ", b": ")):
        lines = [each for each in received.split(b"\n") if each.startswith(b"data: {")]
        payloads = [each.removeprefix(b"data: ") for each in lines]
    else:
        payloads = received.splitlines()
    return "".join(said_in(json.loads(each)) for each in payloads)


def _method_of(path: str) -> Any:
    """Return what the description of the gRPC interface says of a call."""
    service = messages().DESCRIPTOR.services_by_name["Inference"]
    return service.methods_by_name[path.rpartition("/")[2]]


def _plain(message: bytes, path: str) -> Any:
    """Return a message of a call as the JSON that it resembles."""
    from google.protobuf.json_format import MessageToDict

    made = getattr(messages(), _method_of(path).output_type.name).FromString(message)
    fields = MessageToDict(made, preserving_proto_field_name=True)
    for choice in fields.get("choices", ()):
        del choice["token_ids"]  # there is the text, as in other dialects
    return fields


def said_in(payload: Any) -> str:
    """Return the generated parts of a payload, in the order of `PLACES`."""
    return "".join(part for place in PLACES for part in _parts(payload, place))


def _parts(value: Any, place: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _parts(each, place)
    elif isinstance(value, dict):
        if place and place[0] in value:
            yield from _parts(value[place[0]], place[1:])
    elif not place and value is not None:
        yield value if isinstance(value, str) else f"{value},"


# what requests leave behind


async def check_nothing_is_left() -> None:
    """Raise an error if an object of a request lives on, or only a collection frees it."""
    await until(lambda: not any(issubclass(type(each), _OF_REQUESTS) for each in gc.get_objects()))
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        found = [each for each in gc.garbage if _is_ours(each)]
        assert not found, found
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def _is_ours(thing: object) -> bool:
    """Return whether an object is of a class, a function or a coroutine of this project."""
    code = getattr(thing, "cr_code", None) or getattr(thing, "__code__", None)
    if isinstance(code, CodeType):
        return code.co_filename.startswith(_HOME)
    return type(thing).__module__.startswith("octavo.")
