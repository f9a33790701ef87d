"""The operator's function that finds adapters of unknown names."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.options.transport import ServerSettingsError
from octavo.serving.adapters import resolver as resolving
from octavo.transport.errors import ApiError
from tests.server.adapters.make import text_of, write_adapter
from tests.server.engine import FakeEngine
from tests.server.make import serving, until

ASKED: list[tuple[str, str]] = []
PLACES: dict[str, Any] = {}
RETURNING = threading.Event()


def find(model_name: str, name: str) -> Any:
    """Return what the test has put there."""
    ASKED.append((model_name, name))
    found = PLACES.get(name)
    if isinstance(found, Exception):
        raise found
    return found


async def find_slowly(model_name: str, name: str) -> Any:
    """Wait for longer than any limit."""
    await asyncio.Event().wait()


def find_at_last(model_name: str, name: str) -> Any:
    """Return what the test has put there, when it allows that."""
    assert RETURNING.wait(300)
    return find(model_name, name)


class LikeVllm:
    """A resolver in vLLM's form."""

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
        """Return an object with the path."""
        found = find(base_model_name, lora_name)
        return None if found is None else SimpleNamespace(lora_name=lora_name, lora_path=found)


NOTHING = object()


@pytest.fixture(autouse=True)
def _forget() -> None:
    ASKED.clear()
    PLACES.clear()
    RETURNING.clear()


@pytest.mark.parametrize("name", ["find", "LikeVllm"])
def test_an_unknown_name_is_found_when_it_is_first_asked_for(
    directory: Path, tmp_path: Path, name: str
) -> None:
    async def main() -> None:
        engine = FakeEngine(directory, max_loras=2)
        options = {"lora_resolver": f"{__name__}:{name}", "max_lora_names": 2}
        async with serving(directory, engine, **options) as client:
            for index in range(3):
                PLACES[f"a{index}"] = str(write_adapter(tmp_path / f"a{index}", index))
            texts = await asyncio.gather(*(text_of(client, "a0") for _ in range(3)))
            assert len({*texts, await text_of(client)}) == 2
            assert ASKED == [("tiny", "a0")]
            for each in ("a1", "a0", "a2"):  # the one used longest ago makes room
                await text_of(client, each)
            assert [each.name for each in client.server.adapters] == ["a0", "a2"]
            for _ in range(2):
                assert (await client.complete(model="none"))["error"]["code"] == "model_not_found"
            assert ASKED.count(("tiny", "none")) == 1  # it is not asked again at once

    asyncio.run(main())


def test_a_resolver_that_fails_costs_its_own_requests_alone(
    directory: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        engine = FakeEngine(directory, max_loras=2)
        async with serving(directory, engine, lora_resolver=f"{__name__}:find") as client:
            PLACES["broken"] = RuntimeError("SECRET")
            error = (await client.complete(model="broken"))["error"]
            assert error["code"] == "resolver_failed"
            assert "SECRET" not in error["message"]
            PLACES["unfit"] = str(write_adapter(tmp_path / "unfit", 1, unfit=True))
            error = (await client.complete(model="unfit"))["error"]
            assert (error["code"], "lora_A" in error["message"]) == ("unfit", True)
            PLACES["late"] = str(write_adapter(tmp_path / "late", 2))
            for engine.refusal in ("no_room", "loader_ended"):
                assert (await client.complete(model="late"))["error"]["code"] == engine.refusal
            engine.refusal = ""
            assert await text_of(client, "late")  # it was not taken for unknown
            PLACES["number"] = 7
            assert (await client.complete(model="number"))["error"]["code"] == "model_not_found"
            assert await text_of(client)
        options: dict[str, Any] = {"lora_resolver": f"{__name__}:find_slowly"}
        options["lora_resolver_seconds"] = 0.01
        engine = FakeEngine(directory, max_loras=2)
        async with serving(directory, engine, **options) as client:
            assert (await client.complete(model="slow"))["error"]["code"] == "resolver_timeout"

    asyncio.run(main())


def test_a_name_is_looked_for_only_as_long_as_a_client_waits(
    directory: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        options = {"lora_resolver": f"{__name__}:find_slowly"}
        async with serving(directory, FakeEngine(directory, max_loras=2), **options) as client:
            resolver = client.server.resolver
            assert resolver is not None
            names = [f"a{index}" for index in range(resolving.MOST_LOOKED_FOR)]
            waiting = [asyncio.create_task(resolver.find("tiny", each)) for each in names]
            waiting.append(asyncio.create_task(resolver.find("tiny", names[0])))
            await asyncio.sleep(0)
            with pytest.raises(ApiError) as failure:
                await resolver.find("tiny", "other")
            assert (failure.value.status, failure.value.code) == (503, "resolver_full")
            for each in waiting[:-1]:
                each.cancel()
            await asyncio.wait(waiting[:-1])
            assert [*resolver._searches] == names[:1]
            found = resolver._searches[names[0]].task
            assert not found.done()
            waiting[-1].cancel()
            await asyncio.wait(waiting)
            assert not resolver._searches
            await asyncio.wait({found})
            assert found.cancelled()

    asyncio.run(main())


def test_clients_that_leave_have_no_more_calls_of_the_resolver_made(
    directory: Path, tmp_path: Path
) -> None:
    """Functions that do not return keep their threads; no others wait behind them."""

    async def main() -> None:
        options = {"lora_resolver": f"{__name__}:find_at_last"}
        async with serving(directory, FakeEngine(directory, max_loras=2), **options) as client:
            resolver = client.server.resolver
            assert resolver is not None
            for index in range(3 * resolving.MOST_AT_ONCE):
                task = asyncio.create_task(resolver.find("tiny", f"a{index}"))
                for _ in range(5):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
            await until(lambda: not resolver._threads._work_queue.qsize())  # they have begun
            PLACES["late"] = str(write_adapter(tmp_path / "late", 2))
            late = asyncio.create_task(text_of(client, "late"))
            RETURNING.set()
            assert await late
            await asyncio.to_thread(resolver._threads.shutdown)  # all that was called has returned
            assert len(ASKED) == resolving.MOST_AT_ONCE + 1

    asyncio.run(main())


@pytest.mark.parametrize("name", ["nothing", f"{__name__}:none", f"{__name__}:NOTHING"])
def test_a_resolver_that_cannot_be_called_is_refused(name: str) -> None:
    with pytest.raises(ServerSettingsError, match="lora_resolver="):
        resolving.load_resolver(name)
