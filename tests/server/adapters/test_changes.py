"""Adapters that are loaded, replaced and unloaded while the server runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from octavo.adapter_copies.files import TENSORS
from octavo.api.async_llm import AsyncLLM
from octavo.api.control import CommandFailedError
from octavo.client.commands import COMMAND_SECONDS, LOAD_SECONDS, failed, replied
from octavo.client.inline import InlineClient
from octavo.options.named_adapters import NamedAdapter
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError, ServerStartError
from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.serving.adapters.directory import WatchedDirectory
from octavo.transport.errors import ApiError
from octavo.wire.commands import NO_ENGINE, Command, Reply
from tests.server.adapters.make import text_of, with_adapters, write_adapter
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import Client, serving, until

KEY = {"authorization": "Bearer a-long-enough-key"}


def operator(client: Client) -> Client:
    """Return a client of the same server's admin socket."""
    return Client(client.server, ADMIN_ROUTES, checks_access=False)


async def load(client: Client, place: Path, name: str = "new", **more: Any) -> Any:
    """Ask for an adapter to be loaded, as vLLM's clients do."""
    body = {"lora_name": name, "lora_path": str(place), **more}
    return await client.post("/v1/load_lora_adapter", json=body)


def test_operators_load_and_unload_in_vllms_words(directory: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with with_adapters(directory, tmp_path) as client:
            admin, place = operator(client), write_adapter(tmp_path / "new", 7)
            answer = await load(admin, place)
            assert (answer.status_code, answer.text) == (
                200,
                "Success: LoRA adapter 'new' added successfully.",
            )
            first = await text_of(client, "new")
            assert first not in (await text_of(client), await text_of(client, "sql"))
            again = await load(admin, place)
            assert again.status_code == 400
            assert again.json()["error"]["code"] == "already_loaded"
            write_adapter(place, 8)
            assert await text_of(client, "new") == first  # until it is loaded again
            assert (await load(admin, place, load_inplace=True)).status_code == 200
            assert await text_of(client, "new") != first
            gone = await admin.post("/v1/unload_lora_adapter", json={"lora_name": "new"})
            assert gone.text == "Success: LoRA adapter 'new' removed successfully."
            assert (await client.complete(model="new"))["error"]["code"] == "model_not_found"
            gone = await admin.post("/v1/unload_lora_adapter", json={"lora_name": "new"})
            assert gone.status_code == 404

    asyncio.run(main())


def test_sglangs_routes_answer_with_the_adapters_that_there_are(
    directory: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with with_adapters(directory, tmp_path) as client:
            admin, place = operator(client), write_adapter(tmp_path / "new", 7)
            body = {"lora_name": "new", "lora_path": str(place), "pinned": True}
            answer = (await admin.post("/load_lora_adapter", json=body)).json()
            assert answer["success"] is True
            assert answer["loaded_adapters"]["new"] == str(place)
            answer = await admin.post("/load_lora_adapter", json=body)
            assert answer.status_code == 400
            assert "already been loaded" in answer.json()["error_message"]
            answer = await admin.post("/unload_lora_adapter", json={"lora_name": "new"})
            assert [*answer.json()["loaded_adapters"]] == ["sql", "law"]

    asyncio.run(main())


def test_clients_change_adapters_only_where_the_server_allows_it(
    directory: Path, tmp_path: Path
) -> None:
    with pytest.raises(ServerSettingsError, match="need an API key"):
        ServerSettings(allow_runtime_lora_updating=True)

    async def main() -> None:
        place = write_adapter(tmp_path / "new", 7)
        async with with_adapters(directory, tmp_path) as client:
            assert (await load(client, place)).status_code == 403
            scales = await client.post("/lora-adapters", json=[{"id": 0, "scale": 1}])
            assert scales.status_code == 403
        options: dict[str, Any] = {"api_keys": ("a-long-enough-key",)}
        options["allow_runtime_lora_updating"] = True
        async with with_adapters(directory, tmp_path, **options) as client:
            assert (await load(client, place)).status_code == 401
            client.headers.update(KEY)
            assert (await load(client, place)).status_code == 200

    asyncio.run(main())


def test_what_the_engine_refuses_has_changed_nothing(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        engine = FakeEngine(directory, max_loras=2)
        async with with_adapters(directory, tmp_path, engine) as client:
            admin, before = operator(client), await text_of(client, "sql")
            copies = engine.copies
            assert copies is not None
            assert len(copies) == 2
            write_adapter(tmp_path / "sql", 9, unfit=True)
            threads: list[threading.Thread] = []
            discard = copies.discard

            def noted(digest: str) -> None:
                threads.append(threading.current_thread())
                discard(digest)

            monkeypatch.setattr(copies, "discard", noted)
            answer = await load(admin, tmp_path / "sql", "sql", load_inplace=True)
            (thread,) = threads
            assert thread is not threading.main_thread()  # which has the event loop
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert (error["code"], "lora_A" in error["message"]) == ("unfit", True)
            assert await text_of(client, "sql") == before
            assert len(copies) == 2
            engine.is_ready = False
            good = write_adapter(tmp_path / "good", 3)
            answer = await load(admin, good)
            assert answer.status_code == 503
            same = write_adapter(tmp_path / "same", 1)  # as `law` has it
            assert (await load(admin, same)).status_code == 503
            assert len(copies) == 2

    asyncio.run(main())


def test_an_error_names_the_path_that_was_asked_for(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's path may have equal content, and be the one that was copied."""

    async def refuse(digest: str, place: Path) -> bool:
        raise CommandFailedError("unfit", f"{place / TENSORS}: wrong")

    async def main() -> None:
        async with with_adapters(directory, tmp_path) as client:
            admin = operator(client)
            assert (await load(admin, write_adapter(tmp_path / "a", 7))).status_code == 200
            monkeypatch.setattr(client.server.adapters._llm, "load_adapter", refuse)
            answer = await load(admin, write_adapter(tmp_path / "b", 7), "other")
            assert answer.json()["error"]["code"] == "unfit"
            message = answer.json()["error"]["message"]
            assert str(tmp_path / "b" / TENSORS) in message
            assert str(tmp_path / "a" / TENSORS) not in message

    asyncio.run(main())


def test_loading_an_adapter_has_longer_than_other_commands(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, bounds = FakeEngine(directory, max_loras=2), []

    def command(self: InlineClient, _: Command, seconds: float) -> asyncio.Future[Reply]:
        bounds.append(seconds)
        return replied(failed(NO_ENGINE, "none"))

    async def main() -> None:
        monkeypatch.setattr(InlineClient, "command", command)
        assert not await AsyncLLM.load_adapter(engine, "0" * 64, tmp_path)
        await engine.resume()

    asyncio.run(main())
    assert bounds == [LOAD_SECONDS, COMMAND_SECONDS]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        *(("unfit", 400), ("damaged", 400), ("too_large", 400), ("timed_out", 504)),
        *(("failed", 500), ("no_room", 503), ("too_many", 503), ("too_many_commands", 503)),
        *(("loader_ended", 503), ("no_loader", 503), ("no_memory", 503), ("unreadable", 503)),
    ],
)
def test_only_the_adapters_own_faults_are_the_clients(
    directory: Path, tmp_path: Path, code: str, status: int
) -> None:
    """The directory tries an adapter again whose refusal may pass."""

    async def main() -> None:
        engine, place = FakeEngine(directory, max_loras=2), tmp_path / "watched"
        async with serving(directory, engine) as client:
            engine.refusal = code
            answer = await load(operator(client), write_adapter(place / "new", 7))
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            assert ("retry-after" in answer.headers) == (status == 503)
            watched = WatchedDirectory(place, client.server.adapters, most=4)
            await watched.look(is_first=True)
            engine.refusal = ""
            await watched.look()
            assert [each.name for each in client.server.adapters] == ["new"] * (status >= 500)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda place: None, "missing"),
        (lambda place: place.mkdir(), "not_an_adapter"),
        (lambda place: place.write_text("x"), "not_an_adapter"),
        (lambda place: (place.mkdir(), (place / "adapter_model.bin").touch()), "not_an_adapter"),
        (lambda place: (write_adapter(place, 1) / "adapter_config.json").unlink(), "missing"),
        (lambda place: _with_pipe(place), "unreadable"),
        (lambda place: _with_link_to_device(place), "unreadable"),
        (lambda place: _with_large(place), "too_large"),
    ],
)
def test_files_that_are_no_adapter_are_refused(
    directory: Path, tmp_path: Path, make: Any, code: str
) -> None:
    async def main() -> None:
        async with with_adapters(directory, tmp_path / "others") as client:
            place = tmp_path / "wrong"
            make(place)
            answer = await load(operator(client), place)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)

    asyncio.run(main())


def _with_pipe(place: Path) -> None:
    tensors = write_adapter(place, 1) / "adapter_model.safetensors"
    tensors.unlink()
    os.mkfifo(tensors)


def _with_link_to_device(place: Path) -> None:
    tensors = write_adapter(place, 1) / "adapter_model.safetensors"
    tensors.unlink()
    tensors.symlink_to("/dev/zero")


def _with_large(place: Path) -> None:
    with (write_adapter(place, 1) / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(1 << 40)  # takes no room


def test_a_request_finishes_on_the_adapter_with_which_it_began(
    directory: Path, tmp_path: Path
) -> None:
    """A change of its name in the middle of the answer does not disturb it."""

    async def main() -> None:
        gate, begun = threading.Event(), threading.Event()
        gate.set()

        def wait() -> None:
            if engine.core.scheduler.sequences:  # else it frees what the request before had
                begun.set()
                assert gate.wait(300)

        engine = FakeEngine(directory, max_loras=2, runner=ChainRunner(wait))
        async with with_adapters(directory, tmp_path, engine) as client:
            admin, copies = operator(client), engine.copies
            assert copies is not None
            expected = await text_of(client, "sql")
            gate.clear()
            begun.clear()
            running = asyncio.create_task(text_of(client, "sql"))
            await asyncio.to_thread(begun.wait)
            write_adapter(tmp_path / "sql", 9)
            answer = await load(admin, tmp_path / "sql", "sql", load_inplace=True)
            assert answer.status_code == 200
            assert len(copies) == 3  # the former content is kept while it is used
            later = asyncio.create_task(text_of(client, "sql"))
            await admin.post("/v1/unload_lora_adapter", json={"lora_name": "law"})
            gate.set()
            assert await running == expected
            assert await later != expected
            assert all(not each.num_pins for each in copies._copies.values())

    asyncio.run(main())


def test_an_adapter_applies_to_all_requests_as_in_llama_cpp(
    directory: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        place = write_adapter(tmp_path / "sql", 0)
        named = (NamedAdapter("sql", str(place), scale=0.5, is_default=True),)
        engine = FakeEngine(directory, max_loras=2)
        async with serving(directory, engine, lora_modules=named) as client:
            admin, half = operator(client), await text_of(client)
            assert await text_of(client, lora=[{"id": 0, "scale": 0.5}]) == half
            (listed,) = (await client.get("/lora-adapters")).json()
            assert (listed["id"], listed["scale"], listed["path"]) == (0, 0.5, str(place))
            for scales in ([], [{"id": 0, "scale": 0}]):
                answer = await admin.post("/lora-adapters", json=scales)
                assert answer.json() == {"success": True}
                assert await text_of(client) != half
            await admin.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}])
            assert await text_of(client) == half
            for wrong in ([{"id": 7, "scale": 1}], {"id": 0}, [{"id": 0}]):
                assert (await admin.post("/lora-adapters", json=wrong)).status_code == 400
            body = {"lora_name": "sql"}
            assert (await admin.post("/v1/unload_lora_adapter", json=body)).status_code == 200
            assert await text_of(client) != half

    asyncio.run(main())


def test_a_server_does_not_start_with_an_adapter_that_does_not_fit(
    directory: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        place = write_adapter(tmp_path / "sql", 0, unfit=True)
        options = {"lora_modules": (NamedAdapter("sql", str(place)),)}
        with pytest.raises(ServerStartError, match=r"'sql'.*'lora_A'"):
            async with serving(directory, FakeEngine(directory, max_loras=1), **options):
                pass

    asyncio.run(main())


def test_a_watched_directory_is_followed(directory: Path, tmp_path: Path) -> None:
    async def main() -> None:
        place = tmp_path / "watched"
        write_adapter(place / "one", 1)
        engine = FakeEngine(directory, max_loras=2)
        async with serving(directory, engine) as client:
            registry = client.server.adapters
            watched = WatchedDirectory(place, registry, most=4)
            await watched.look(is_first=True)
            first = await text_of(client, "one")
            write_adapter(place / "two", 2)
            write_adapter(place / "bad", 3, unfit=True)
            (place / "other").mkdir()
            (place / "file").write_text("x")
            await watched.look()
            assert [each.name for each in registry] == ["one"]  # two may not be whole
            await watched.look()
            assert [each.name for each in registry] == ["one", "two"]
            write_adapter(place / "one", 4)
            await watched.look()
            await watched.look()
            assert await text_of(client, "one") != first
            write_adapter(place / "one", 5, unfit=True)
            now = await text_of(client, "one")
            for _ in range(3):
                await watched.look()
            assert await text_of(client, "one") == now
            shutil.rmtree(place / "two")
            await watched.look()
            assert [each.name for each in registry] == ["one", "two"]  # it may come back at once
            await watched.look()
            assert [each.name for each in registry] == ["one"]

    asyncio.run(main())


def test_files_are_exchanged_without_a_moment_in_which_their_name_is_unknown(
    directory: Path, tmp_path: Path
) -> None:
    """A look may find the directory without files, half of them, or no directory."""

    async def main() -> None:
        place, engine = tmp_path / "watched", FakeEngine(directory, max_loras=2)
        write_adapter(place / "sql", 0)
        async with serving(directory, engine) as client:
            watched = WatchedDirectory(place, client.server.adapters, most=4)
            await watched.look(is_first=True)
            for seed, missing in enumerate(
                ("adapter_model.safetensors", "adapter_config.json", "")
            ):
                before = await text_of(client, "sql")
                shutil.rmtree(place / "sql") if not missing else (place / "sql" / missing).unlink()
                await watched.look()
                assert await text_of(client, "sql") == before
                shutil.rmtree(place / "sql", ignore_errors=True)
                write_adapter(place / ".next", seed + 1).rename(place / "sql")
                await watched.look()
                assert await text_of(client, "sql") == before
                await watched.look()
                assert await text_of(client, "sql") != before

    asyncio.run(main())


def test_a_watched_directory_is_looked_at_while_the_server_runs(
    directory: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        write_adapter(tmp_path / "one", 1)
        engine = FakeEngine(directory, max_loras=2)
        options = {"lora_directory": tmp_path, "lora_directory_seconds": 0.01}
        async with serving(directory, engine, **options) as client:
            assert client.server.adapters.get("one") is not None
            write_adapter(tmp_path / "two", 2)
            await until(lambda: client.server.adapters.get("two") is not None)
        missing = {"lora_directory": tmp_path / "none"}
        with pytest.raises(ServerStartError, match="cannot be read"):
            async with serving(directory, FakeEngine(directory, max_loras=1), **missing):
                pass

    asyncio.run(main())


def test_names_are_bounded(directory: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with with_adapters(directory, tmp_path, max_lora_names=2) as client:
            place = write_adapter(tmp_path / "new", 7)
            answer = await load(operator(client), place)
            assert answer.json()["error"]["code"] == "too_many_adapters"
            for name in ("tiny", " x", "x" * 600):
                assert (await load(operator(client), place, name)).status_code == 400

    asyncio.run(main())


def test_a_copy_that_made_room_is_made_again(directory: Path, tmp_path: Path) -> None:
    async def main() -> None:
        engine = FakeEngine(directory, max_loras=2)
        async with with_adapters(directory, tmp_path, engine) as client:
            expected, copies = await text_of(client, "sql"), engine.copies
            assert copies is not None
            adapter = client.server.adapters.get("sql")
            assert adapter is not None
            copies.discard(adapter.digest)
            assert len(copies) == 1
            assert await text_of(client, "sql") == expected
            copies.discard(adapter.digest)
            shutil.rmtree(tmp_path / "sql")
            error = (await client.complete(model="sql"))["error"]
            assert (error["code"], "sql" in error["message"]) == ("adapter_unavailable", True)

    asyncio.run(main())


def test_an_adapter_that_is_being_loaded_is_not_loaded_twice(
    directory: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with with_adapters(directory, tmp_path) as client:
            place = write_adapter(tmp_path / "new", 7)
            registry = client.server.adapters
            adding = [registry.add(NamedAdapter("new", str(place)), "operator") for _ in range(2)]
            found = await asyncio.gather(*adding, return_exceptions=True)
            errors = [each.code for each in found if isinstance(each, ApiError)]
            assert errors == ["being_loaded"]

    asyncio.run(main())
