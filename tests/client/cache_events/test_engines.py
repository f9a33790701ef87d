"""Engines in processes of their own publish what they cache, over deaths, resets and sleep."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from octavo import LLM
from octavo.client.inline import start as start_inline
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import ProcessClient, make_client
from octavo.core.config import ConfigError
from octavo.core.request import Request
from octavo.options.engine import EngineArguments
from octavo.options.kv_events import KVEventsConfig
from octavo.wire.commands import ResetPrefixCache
from tests.client.cache_events.reader import Reader
from tests.client.clients import FACTORY, Caller, eventually, patient, request, run

SIZE = 4  # tokens of the fake engine's blocks


def start(config: KVEventsConfig, count: int) -> ProcessClient:
    """Return a client whose engines are ready."""
    arguments = EngineArguments("fake?", data_parallel_size=count, kv_events_config=config)
    client = make_client(arguments, [ProcessLauncher(FACTORY) for _ in range(count)], patient())
    client.start()
    return client


def blocks_of(caller: Caller, one: Request) -> set[tuple[int, ...]]:
    """Return the tokens up to the end of each block whose KV was computed for a request."""
    tokens = (*one.prompt, *caller.tokens[one.request_id][:-1])
    return {tokens[:end] for end in range(SIZE, len(tokens) + 1, SIZE)}


def test_engines_publish_what_they_cache() -> None:
    with TemporaryDirectory() as directory:
        events, replays = f"ipc://{directory}/events", f"ipc://{directory}/replays"
        client = start(KVEventsConfig(endpoint=events, replay_endpoint=replays), 2)
        readers = [Reader(events, replays), Reader(f"{events}_dp1", f"{replays}_dp1")]

        def known() -> set[tuple[int, ...]]:
            for reader in readers:
                reader.ask(reader.number + 1)
            return {tokens for reader in readers for tokens in reader.blocks.values()}

        async def world() -> None:
            caller = Caller(client)
            requests = [request(f"r{each}", [each, 2, 3, 4, 5, each]) for each in range(6)]
            caller.send(*requests)
            await caller.all_ended()
            right = {tokens for each in requests for tokens in blocks_of(caller, each)}
            await eventually(lambda: known() == right)
            assert [list(each.ranks) for each in readers] == [[0], [1]]
            assert all(reader.blocks for reader in readers), "each engine has some"
            await _lose_one(client, readers, known)
            more = request("more", [7, 8, 9, 10, 11])
            caller.send(more)
            await caller.all_ended()
            await eventually(lambda: blocks_of(caller, more) <= known())
            await client.command(ResetPrefixCache())
            await eventually(lambda: not known())
            caller.send(request("last", [7, 8, 9, 10, 11]))
            await caller.all_ended()
            await eventually(lambda: bool(known()))
            client.sleep()
            await eventually(lambda: not known())

        try:
            run(world)
        finally:
            client.close()
            for reader in readers:
                reader.close()


async def _lose_one(
    client: ProcessClient, readers: list[Reader], known: Callable[[], set[tuple[int, ...]]]
) -> None:
    """End one engine: its blocks are gone, and the other's are not."""
    process = client.engines[1].supervisor.run
    assert process is not None
    kept = {*readers[0].blocks.values()}
    os.kill(process.process.popen.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    await eventually(lambda: known() == kept)
    await eventually(lambda: client.members[1].is_ready)


def test_an_engine_in_the_callers_process_is_refused(tmp_path: Path) -> None:
    config = {"enable_kv_cache_events": True}
    with pytest.raises(ConfigError, match="kv_events_config"):
        LLM(str(tmp_path), kv_events_config=config)
    with pytest.raises(ConfigError, match="kv_events_config"):
        start_inline(EngineArguments("fake?", kv_events_config=KVEventsConfig()), None, None)
