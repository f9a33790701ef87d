"""A confined engine gets files while it runs, from a process that may read them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from octavo.client.launcher import ChildProcess, ProcessLauncher
from octavo.client.loader_keeper import LoaderKeeper
from octavo.client.process import ProcessClient, make_client
from octavo.confine.filter import why_unavailable
from octavo.core.config import ConfigError
from octavo.engine.commands import NO_LOADER
from octavo.engine.tensor_files import IN_USE, NOT_LOADED, UNFIT, UNKNOWN_KIND
from octavo.loader_process.connection import LOADER_ENDED
from octavo.loader_process.read import DAMAGED, OUTSIDE, UNREADABLE
from octavo.options.engine import EngineArguments
from octavo.wire.commands import FAILED, NO_ENGINE, Command, LoadedFile, LoadFile, UnloadFile
from tests.client.clients import (
    FACTORY,
    Caller,
    error_code,
    eventually,
    patient,
    process_of,
    request,
    run,
    running,
)
from tests.loader.make_files import write_safetensors
from tests.loader_process.files import ARRAYS, write_file
from tests.sim.truth import whole_output

pytestmark = pytest.mark.skipif(
    why_unavailable() is not None, reason="this kernel has no filters of system calls"
)


@contextmanager
def loading_from(directory: Path, settings: str = "sums=1") -> Iterator[ProcessClient]:
    """Yield a client whose engine may load files below a directory."""
    launcher = ProcessLauncher(FACTORY, [directory])
    client = make_client(EngineArguments(model=f"fake?{settings}"), [launcher], patient())
    client.start()
    try:
        yield client
    finally:
        client.close()


def loader_of(client: ProcessClient) -> subprocess.Popen[bytes]:
    """Return the process of the current loader."""
    keeper = keeper_of(client)
    assert keeper.popen is not None
    return keeper.popen


def keeper_of(client: ProcessClient) -> LoaderKeeper:
    engine_run = client.engines[0].supervisor.run
    assert engine_run is not None
    assert isinstance(engine_run.process, ChildProcess)
    assert engine_run.process.loader is not None
    return engine_run.process.loader


def load(path: Path, label: str = "one", kind: str = "sums") -> LoadFile:
    return LoadFile(kind, label, str(path))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    write_file(directory)
    return directory


@pytest.fixture(scope="module")
def client(directory: Path) -> Iterator[ProcessClient]:
    with loading_from(directory) as client:
        yield client


def test_an_engine_that_can_open_no_file_reads_the_tensors_of_one(
    client: ProcessClient, directory: Path
) -> None:
    """The engine checks the numbers against a sum, and that it cannot open the file."""
    path = directory / "numbers.safetensors"
    content = path.read_bytes()
    one = request("r", max_tokens=200)

    async def world() -> None:
        caller = Caller(client)
        caller.send(one)
        await caller.some_tokens("r")
        loaded = LoadedFile(len(ARRAYS), len(content))
        for label in ("one", "two"):
            assert (await client.command(load(path, label))).value == loaded
        assert (await client.command(load(path))).value == loaded, "it is loaded already"
        assert await error_code(client.command(load(directory / "other"))) == IN_USE
        for label in ("one", "two"):
            assert (await client.command(UnloadFile("sums", label))).error is None
        assert await error_code(client.command(UnloadFile("sums", "one"))) == NOT_LOADED
        assert (await client.command(load(path))).value == loaded
        assert (await client.command(UnloadFile("sums", "one"))).error is None
        await caller.all_ended()
        assert caller.tokens["r"] == whole_output(one, 4096)[0]

    run(world)


def test_what_cannot_be_loaded_is_an_error_with_a_code(
    client: ProcessClient, directory: Path
) -> None:
    path = directory / "numbers.safetensors"
    damaged, unfit = directory / "damaged", directory / "unfit"
    damaged.write_bytes(path.read_bytes()[:-1])
    write_safetensors(unfit, {"numbers": np.ones(3, np.float32)}, {"sum": "4"})
    cases: list[tuple[Command, str]] = [
        (load(damaged), DAMAGED),
        (load(unfit), UNFIT),
        (load(directory / "absent"), UNREADABLE),
        (load(Path(__file__)), OUTSIDE),
        (load(path, kind="adapter"), UNKNOWN_KIND),
        (load(path, label="trap"), FAILED),
        (UnloadFile("adapter", "one"), NOT_LOADED),
    ]

    async def world() -> None:
        Caller(client)
        for command, code in cases:
            assert await error_code(client.command(command)) == code
        assert (await client.command(load(path))).error is None
        assert (await client.command(UnloadFile("sums", "one"))).error is None
        assert client.engines[0].supervisor.restarts.num_restarts == 0

    run(world)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS, signal.SIGALRM])
def test_the_death_of_a_loader_is_an_error_and_another_follows(
    client: ProcessClient, directory: Path, number: signal.Signals
) -> None:
    path = directory / "numbers.safetensors"
    one = request("r")

    async def world() -> None:
        caller = Caller(client)
        dying = loader_of(client)
        dying.send_signal(signal.SIGSTOP)
        replies = [client.command(load(path, label)) for label in ("one", "two")]
        caller.send(one)
        await caller.all_ended()  # a load delays no text
        assert caller.tokens["r"] == whole_output(one, 4096)[0]
        assert not any(reply.done() for reply in replies)
        dying.send_signal(number)
        dying.send_signal(signal.SIGCONT)
        assert [await error_code(reply) for reply in replies] == [LOADER_ENDED, None]
        assert loader_of(client) is not dying
        reply = await client.command(load(path))
        assert reply.error is None
        for label in ("one", "two"):
            assert (await client.command(UnloadFile("sums", label))).error is None
        assert client.engines[0].supervisor.restarts.num_restarts == 0

    run(world)


def test_an_engine_that_ends_takes_its_loader_along_and_the_next_has_its_own(
    directory: Path,
) -> None:
    path = directory / "numbers.safetensors"
    with loading_from(directory) as client:

        async def world() -> None:
            Caller(client)
            assert (await client.command(load(path))).error is None
            before, keeper = loader_of(client), keeper_of(client)
            before.send_signal(signal.SIGSTOP)  # so that a file is being loaded
            reply = client.command(load(path, "two"))
            process_of(client).kill()
            assert await error_code(reply) == NO_ENGINE
            await eventually(lambda: before.poll() is not None)
            await eventually(lambda: client.engines[0].is_ready)
            assert keeper_of(client) is not keeper
            assert (await client.command(load(path))).error is None  # a new engine has no files

        run(world)
        last = loader_of(client)
    assert last.poll() is not None


def test_an_engine_with_a_loader_is_confined_in_all_its_threads(client: ProcessClient) -> None:
    threads = list(Path(f"/proc/{process_of(client).pid}/task").iterdir())
    assert len(threads) > 2
    for thread in threads:
        assert "Seccomp:\t2\n" in (thread / "status").read_text()


def test_an_engine_without_a_loader_says_so(directory: Path) -> None:
    with running("sums=1") as client:

        async def world() -> None:
            Caller(client)
            path = directory / "numbers.safetensors"
            assert await error_code(client.command(load(path))) == NO_LOADER
            assert await error_code(client.command(UnloadFile("sums", "one"))) == NO_LOADER

        run(world)


def test_a_directory_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent is no directory"):
        ProcessLauncher(FACTORY, [tmp_path, tmp_path / "absent"])


def test_loaders_that_fail_in_a_row_are_replaced_more_and_more_slowly(tmp_path: Path) -> None:
    keeper = LoaderKeeper([tmp_path])
    try:
        delays = []
        for keeper._num_failed in range(2000):
            delays.append(keeper._delay())
        assert delays[:2] == [0.0, 0.0]
        assert delays == sorted(delays)
        assert delays[-1] == 5.0
    finally:
        keeper.close()
    assert keeper.popen is not None
    assert keeper.popen.poll() is not None
    keeper.close()


def test_a_loader_does_not_get_the_servers_keys(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "a-secret-key")
    keeper = LoaderKeeper([directory])
    try:
        assert keeper.popen is not None
        if os.geteuid() == 0:  # it cannot be read by others, once it has started
            environment = Path(f"/proc/{keeper.popen.pid}/environ").read_bytes()
            assert b"a-secret-key" not in environment
    finally:
        keeper.close()
