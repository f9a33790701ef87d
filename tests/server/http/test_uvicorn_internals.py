"""Every part of uvicorn that `connection.py`, `half_close.py` and `lifecycle.py` use.

Its documented API is not listed.

The dependency has an upper bound for their sake. Raise it in pyproject.toml when these tests, and
those of the folder, pass with a newer version.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from octavo.transport import connection, half_close

# Methods that connection.py overrides, with their parameters.
OVERRIDDEN = {
    "__init__": None,  # passed on as it comes
    "connection_made": ["transport"],
    "connection_lost": ["exc"],
    "data_received": ["data"],
    "eof_received": [],
    "shutdown": [],
    "on_message_begin": [],
    "on_header": ["name", "value"],
    "on_headers_complete": [],
    "on_body": ["body"],
    "on_message_complete": [],
    "on_response_complete": [],
    "_start_asgi_task": ["cycle", "app"],
}
# Attributes that it reads or sets, by the object that has them.
PROTOCOL = {
    *("client", "cycle", "flow", "headers", "loop", "parser", "pipeline", "scheme", "scope"),
    *("transport", "url", "_unset_keepalive_if_required"),
}
CYCLE = {
    *("chunked_encoding", "disconnected", "keep_alive", "message_event", "more_body"),
    *("response_complete", "response_started", "scope", "transport"),
}
FLOW = {"read_paused", "resume_reading", "write_paused"}
LISTENER = {
    *("capture_signals", "config", "force_exit", "serve", "server_state", "should_exit"),
    *("shutdown", "started", "startup"),
}
CONFIG = {
    *("access_log", "app", "backlog", "http", "lifespan", "log_config", "proxy_headers"),
    *("server_header", "timeout_graceful_shutdown", "timeout_keep_alive", "ws"),
}


class Transport(asyncio.Transport):
    """A connection that takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


def test_the_methods_that_are_overridden() -> None:
    for name, parameters in OVERRIDDEN.items():
        method = getattr(HttpToolsProtocol, name)
        if parameters is not None:
            assert list(inspect.signature(method).parameters)[1:] == parameters, name
    ours = vars(connection._Bounded)
    assert {name for name in ours if name in vars(HttpToolsProtocol)} - {
        *("__doc__", "__module__", "__firstlineno__", "__static_attributes__"),
    } == set(OVERRIDDEN)


def test_the_attributes_of_a_protocol_and_a_cycle() -> None:
    async def main() -> None:
        config = uvicorn.Config(nothing, log_config=None)
        config.load()
        protocol = HttpToolsProtocol(config, ServerState(), {})
        protocol.connection_made(Transport())
        protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        cycle = protocol.cycle
        assert isinstance(cycle, RequestResponseCycle)
        for holder, names in ((protocol, PROTOCOL), (cycle, CYCLE), (protocol.flow, FLOW)):
            for name in names:
                assert hasattr(holder, name), f"{type(holder).__name__}.{name}"
        assert cycle.scope is protocol.scope, "the scope of the request that was parsed last"
        assert (cycle.response_complete, cycle.disconnected) == (False, False)
        assert protocol.flow.write_paused is False
        protocol.pause_writing()
        assert protocol.flow.write_paused is True
        for task in protocol.tasks:
            task.cancel()

    asyncio.run(main())


def test_the_chunks_of_a_stream() -> None:
    """connection.py writes a chunk as `send` does after a head without a length."""

    async def main() -> None:
        config = uvicorn.Config(nothing, log_config=None)
        config.load()
        protocol = HttpToolsProtocol(config, ServerState(), {})
        transport = Transport()
        protocol.connection_made(transport)
        protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await protocol.cycle.send({"type": "http.response.start", "status": 200, "headers": []})
        assert protocol.cycle.chunked_encoding is True
        transport.written = b""
        body = b"sixteen bytes ok"
        await protocol.cycle.send({"type": "http.response.body", "body": body, "more_body": True})
        assert transport.written == b"10\r\n" + body + b"\r\n"
        for task in protocol.tasks:
            task.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("name", sorted(LISTENER))
def test_the_attributes_of_a_server(name: str) -> None:
    assert hasattr(uvicorn.Server(uvicorn.Config(nothing, log_config=None)), name)


def test_the_parameters_of_a_configuration() -> None:
    assert set(inspect.signature(uvicorn.Config.__init__).parameters) >= CONFIG


def test_the_lists_are_complete() -> None:
    """Every attribute of a protocol, cycle or flow in the two modules is in a list above."""
    found: dict[str, set[str]] = {"self": set(), "cycle": set(), "flow": set(), "_running": set()}
    for part in (connection._Bounded, connection._disconnect, half_close.Probe._write):
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(part)))):
            if isinstance(node, ast.Attribute):
                holder = node.value
                name = getattr(holder, "attr", getattr(holder, "id", ""))
                found.setdefault(name, set()).add(node.attr)
    own = {name for name in found["self"] if name.startswith("_") and name not in PROTOCOL}
    assert found["self"] - own - {"shared", "place", "make_room", "was_made"} == PROTOCOL
    assert found["cycle"] | found["_running"] == CYCLE
    assert found["flow"] == FLOW
