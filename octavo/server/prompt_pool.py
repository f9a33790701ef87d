"""Prompts to tokens: small ones at once, large or hostile ones in a process with a time limit.

A rendering that stays within `SMALL` takes the event loop milliseconds at the worst; one that
does not is begun again in a process apart, under the full limits and the clock. A process that
overruns is killed, and the next job gets a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable

import msgspec

from octavo.api.text_model import TextModel
from octavo.server.http.errors import ApiError, invalid, unavailable
from octavo.server.settings import ServerConfig
from octavo.text.chat.budget import ChatTemplateError, TemplateLimitError
from octavo.text.prompt_worker import (
    LENGTH,
    MAX_FRAME_BYTES,
    SMALL,
    SMALL_CHARACTERS,
    Conversation,
    PreparedPrompt,
    PromptJob,
    Refused,
    Workbench,
    do,
)

START_SECONDS = 60.0  # for a process to read its tokenizer; none of it is a client's doing
MAX_IN_LINE = 64  # jobs that wait for a process


class PromptPool:
    """Everything between a request's words and its token ids."""

    def __init__(
        self,
        config: ServerConfig,
        model: TextModel,
        clock: Callable[[], float],
        count_elsewhere: Callable[[], None],
        count_killed: Callable[[], None],
    ) -> None:
        self._config = config
        self._model = model
        self._clock = clock
        self._count_elsewhere = count_elsewhere
        self._count_killed = count_killed
        self._bench = Workbench(model.tokenizer, SMALL)
        self._idle: list[_Process] = []
        self._free = asyncio.Semaphore(config.num_preparers)
        self._num_in_line = 0
        self._burials: set[asyncio.Task[None]] = set()

    async def prepare(self, job: PromptJob) -> PreparedPrompt:
        """The prompt's text and tokens; raises ApiError for what cannot be prepared."""
        if self._is_small(job):
            try:
                return do(self._bench, job, self._clock)
            except TemplateLimitError:
                pass  # too much for here; a process apart has more time
            except ChatTemplateError as error:
                raise invalid(str(error), _blamed(job)) from None
        return await self._elsewhere(job)

    async def close(self) -> None:
        """End the processes."""
        for process in self._idle:
            await process.kill()
        self._idle.clear()
        await asyncio.gather(*self._burials)

    def _bury(self, process: _Process) -> None:
        """End a process without waiting for its end."""
        task = asyncio.get_running_loop().create_task(process.kill())
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    def _is_small(self, job: PromptJob) -> bool:
        if job.text is not None:
            return len(job.text) <= SMALL_CHARACTERS
        assert job.conversation is not None
        if job.conversation.template not in (None, self._config.chat_template):  # a client's own
            return False
        return _size(job.conversation) <= SMALL_CHARACTERS

    async def _elsewhere(self, job: PromptJob) -> PreparedPrompt:
        if self._num_in_line >= MAX_IN_LINE:
            raise unavailable("too many large prompts are being prepared", "preparation_full", 1)
        self._count_elsewhere()
        self._num_in_line += 1
        try:
            async with self._free:
                return await self._run(job)
        finally:
            self._num_in_line -= 1

    async def _run(self, job: PromptJob) -> PreparedPrompt:
        process = self._idle.pop() if self._idle else await _Process.start(str(self._model.path))
        config = self._config
        seconds = config.template_seconds if job.conversation else config.tokenize_seconds
        is_well = False
        try:
            async with asyncio.timeout(seconds):
                answer = await process.do(job)
            is_well = True
        except TimeoutError:
            what = "rendering the chat template" if job.conversation else "tokenising the prompt"
            self._count_killed()
            raise invalid(f"{what} took more than {seconds:g} s", _blamed(job)) from None
        except (EOFError, ConnectionError):
            self._count_killed()
            raise invalid("the prompt is too large to be prepared", _blamed(job)) from None
        finally:
            if is_well:
                self._idle.append(process)
            else:  # also when the client has gone: what it left running is nobody's
                self._bury(process)
        if isinstance(answer, Refused):
            raise invalid(answer.message, _blamed(job))
        return answer


class _Process:
    """One preparing process; it does one job at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, path: str) -> _Process:
        """A process that has read its tokenizer."""
        self = cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "octavo.text.prompt_worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # a terminal's Ctrl-C is the server's to handle
            )
        )
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._write(path.encode())
                await self._read()
        except (TimeoutError, EOFError, ConnectionError):
            await self.kill()
            raise ApiError(500, "prompts of this size cannot be prepared now") from None
        except BaseException:
            self.kill_now()
            raise
        return self

    async def do(self, job: PromptJob) -> PreparedPrompt | Refused:
        """Send a job and wait for its answer."""
        await self._write(msgspec.msgpack.encode(job))
        frame = await self._read()
        kind: type[PreparedPrompt] | type[Refused] = (
            PreparedPrompt if frame[:1] == b"p" else Refused
        )
        return msgspec.msgpack.decode(frame[1:], type=kind)

    def kill_now(self) -> None:
        """End it; it is collected in the background."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def kill(self) -> None:
        """End it and wait until it has."""
        self.kill_now()
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def _write(self, frame: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(LENGTH.pack(len(frame)) + frame)
        await self._process.stdin.drain()

    async def _read(self) -> bytes:
        assert self._process.stdout is not None
        (length,) = LENGTH.unpack(await self._process.stdout.readexactly(LENGTH.size))
        if length > MAX_FRAME_BYTES:
            raise EOFError
        return await self._process.stdout.readexactly(length)


def _size(conversation: Conversation) -> int:
    """Characters of a conversation, about; without walking far into what is large."""
    total = 0
    pending: list[object] = [
        conversation.messages,
        conversation.documents or (),
        conversation.variables,
    ]
    while pending and total <= SMALL_CHARACTERS:
        value = pending.pop()
        total += 4
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, dict):
            pending.extend(value.keys())
            pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(value[:SMALL_CHARACTERS])
            total += len(value)
    return total


def _blamed(job: PromptJob) -> str:
    if job.conversation is None:
        return "prompt"
    return "messages" if job.conversation.template is None else "chat_template"
