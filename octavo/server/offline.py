"""Answers one file of requests without a socket, as `octavo batch` does.

Results are kept beside the output while the batch runs, so that the same command continues after a
kill. The output appears whole, with its lines in the order of the requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from octavo.api.async_llm import AsyncLLM
from octavo.api.outputs import RequestError
from octavo.options.server import ServerSettings
from octavo.server.routes import DEFAULT_DIALECT, ROUTES
from octavo.serving.adapters.service import AdapterService
from octavo.serving.batches.calls import Calls, batch_urls
from octavo.serving.batches.input_file import MAX_ERRORS, Bounds, InputFile
from octavo.serving.batches.pump import Job, Pump
from octavo.serving.batches.results import ResultsFile
from octavo.serving.batches.unknown_fields import UnknownFields
from octavo.serving.server import Server

MAX_LINES = 10_000_000  # each takes about 100 bytes of memory
MAX_BODY_BYTES = 64 << 20
SECONDS = 7 * 24 * 3600.0  # for one request
AHEAD = 4  # requests that are prepared while others run
_WATCH_SECONDS = 0.5
_SHOWN_ERRORS = 10


@dataclass(frozen=True, slots=True)
class Paths:
    """The files of one batch."""

    requests: Path
    output: Path
    errors: Path

    @property
    def progress(self) -> Path:
        """The results until all are there."""
        return self.output.with_name(self.output.name + ".progress")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The numbers of results."""

    num_lines: int
    num_errors: int
    num_before: int  # that an earlier process has left


def open_requests(paths: Paths, warn: Callable[[str], object] = lambda warning: None) -> InputFile:
    """Open and check the whole file of requests; raise RequestError with the lines at fault.

    `warn` takes a line for each field that has no effect.
    """
    urls: Collection[str] = batch_urls(ROUTES)
    unknown = UnknownFields(ROUTES)
    file = InputFile(paths.requests, Bounds(urls, MAX_LINES, MAX_BODY_BYTES), unknown.note)
    while file.read_piece():
        pass
    if not file.errors:
        for warning in unknown.warnings:
            warn(warning)
        return file
    file.close()
    shown = [
        f"  {'' if each.line is None else f'line {each.line}: '}{each.error.message}"
        for each in file.errors[:_SHOWN_ERRORS]
    ]
    count = f"{MAX_ERRORS} or more" if len(file.errors) >= MAX_ERRORS else f"{len(file.errors)}"
    lines = "\n".join(shown)
    raise RequestError(f"{paths.requests} has errors ({count}), and nothing was begun:\n{lines}")


async def answer_file(
    llm: AsyncLLM,
    config: ServerSettings,
    file: InputFile,
    paths: Paths,
    show: Callable[[int, int, int], None],
) -> Outcome:
    """Answer all lines that have no result yet, and write the output.

    `show` takes the number of results, that of all lines, and that of generated tokens. Raise
    EngineDeadError when there is no more engine; what was answered is kept then too.
    """
    server = Server(llm, config)
    adapters = AdapterService(server)
    try:
        await adapters.start()
        return await _answer_with(server, file, paths, show)
    finally:
        adapters.close()


async def _answer_with(
    server: Server, file: InputFile, paths: Paths, show: Callable[[int, int, int], None]
) -> Outcome:
    """Answer all lines that have no result yet with a server that has its adapters."""
    llm = server.llm
    identity = b"\n".join(
        [
            file.digest + llm.facts.directory.encode(),
            *(f"{each.name} {each.digest} {each.scale}".encode() for each in server.adapters),
        ]
    )
    results = await asyncio.to_thread(ResultsFile, paths.progress, identity)
    try:
        llm.attach()
        await server.prompt_pool.start()
        num_before = len(results)
        job = Job("offline", "", file, results, is_background=False)
        limit = server.admission.capacity + AHEAD
        pump = Pump(Calls(server, ROUTES, DEFAULT_DIALECT), lambda running: running < limit)

        def on_result(of: Job) -> None:
            show(len(results), file.num_lines, server.metrics.num_generated)

        pump.on_result = on_result
        on_result(job)
        pump.add(job)
        try:
            await _until_over(job, llm)
        finally:
            pump.remove(job)
            await job.stop()
        num_errors = results.num_errors
        await asyncio.to_thread(_write, results, paths)
    finally:
        await asyncio.to_thread(results.close)
        await server.prompt_pool.close()
    return Outcome(file.num_lines, num_errors, num_before)


async def _until_over(job: Job, llm: AsyncLLM) -> None:
    """Wait until all lines have results; raise the reason if there is no more engine."""
    while not job.is_over.is_set():
        if llm.death is not None:
            raise llm.death
        if job.failure is not None:
            raise job.failure
        try:
            async with asyncio.timeout(_WATCH_SECONDS):
                await job.is_over.wait()
        except TimeoutError:
            continue


def _write(results: ResultsFile, paths: Paths) -> None:
    if results.num_errors:
        results.copy(paths.errors, errors=True)
    results.copy(paths.output, errors=False)
    results.remove()
