"""An engine of this process, asked as a client asks the server: by the route of chats."""

from __future__ import annotations

import asyncio
import json

from octavo.api.async_llm import AsyncLLM
from octavo.api.pooling.served import check_generates
from octavo.cli.chat.endpoint import MAX_ERROR_BYTES, Body, Events, Take, error_of
from octavo.cli.chat.interrupts import Interrupts
from octavo.cli.chat.single import NO_TEMPLATE
from octavo.core.sampling_params import RequestError
from octavo.dialects.common.dialect import OPENAI
from octavo.dialects.openai.routes import OPENAI_ROUTES
from octavo.options.server import ServerSettings
from octavo.serving.exchange import Exchange
from octavo.serving.server import Server
from octavo.transport.answer import Headers, KeptAnswer, RequestHead
from octavo.transport.errors import ApiError, ClientGoneError

_PATH = "/v1/chat/completions"
_MAX_BODY_BYTES = 128 << 20
_SECONDS = 7 * 24 * 3600.0  # for one answer, which Ctrl-C ends


class OwnEngine:
    """The engine, with the server's reading of requests and answers, and without a socket."""

    def __init__(self, llm: AsyncLLM, template: str | None = None) -> None:
        self._llm = llm
        self._runner = asyncio.Runner()
        try:
            check_generates(llm.facts)
            if template is None and not llm.model.tokenizer.chat_templates:
                raise RequestError(NO_TEMPLATE)
            config = ServerSettings(
                chat_template=template,
                max_body_bytes=_MAX_BODY_BYTES,
                max_request_seconds=_SECONDS,
            )
            self._server = Server(llm, config)
            self._handler = next(each.handler for each in OPENAI_ROUTES if each.path == _PATH)
            self._runner.run(self._start())
        except BaseException:
            self._runner.close()
            llm.close()
            raise

    def close(self) -> None:
        """Stop the engine and the workers."""
        with Interrupts(is_last=True) as interrupts:
            try:
                interrupts.run(self._runner, self._server.prompt_pool.close())
            finally:
                self._runner.close()
                self._llm.close()

    def chat(self, body: Body, take: Take) -> None:
        """Answer a request; Ctrl-C ends it in the engine too, and a second one the program."""
        own = {name: value for name, value in body.items() if name != "model"}  # there is one
        with Interrupts() as interrupts:
            interrupts.run(self._runner, self._ask(json.dumps(own).encode(), take))

    async def _start(self) -> None:
        self._llm.attach()
        await self._server.prompt_pool.start()

    async def _ask(self, body: bytes, take: Take) -> None:
        answer = _Streamed(take)
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        exchange = Exchange(self._server, RequestHead("POST", _PATH, headers), answer, OPENAI)
        exchange.give(body)
        try:
            await self._handler(exchange)
        except ClientGoneError:
            if answer.failure is None:
                raise
        except ApiError as error:
            if answer.failure is None:
                raise RequestError(error.named_message) from None
        answer.finish()


class _Streamed(KeptAnswer):
    """The response of the route, whose events are passed on as they come."""

    def __init__(self, take: Take) -> None:
        self.failure: Exception | None = None
        self._events = Events(take)
        self._status = 0
        self._error = b""

    async def begin(self, status: int, headers: Headers) -> None:
        self._status = status

    def write_now(self, part: bytes) -> None:
        if self._status != 200:
            self._error = (self._error + part)[:MAX_ERROR_BYTES]
            return
        try:
            self._events.feed(part)
        except Exception as error:  # of the terminal too: it ends the request as a client's leaving
            self.failure = error
            raise ClientGoneError from None

    def finish(self) -> None:
        """Raise the error of the answer, if there is one."""
        if self.failure is not None:
            raise self.failure
        if self._status != 200:
            raise error_of(self._status, self._error)
        self._events.finish()
