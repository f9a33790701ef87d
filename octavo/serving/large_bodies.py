"""The reading of a request's body: of a small one at once, of a large one in a prompt worker.

A large body would hold the event loop, and may become many times as large as it was. A worker
decodes and translates it with the same code as a small one, and prepares its prompts in the same
trip. What comes back is the request without its prompts, and their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from octavo.named_object import find_object
from octavo.serving.exchange import Exchange
from octavo.serving.operation import GenerationRequest
from octavo.serving.preparation import jobs_of
from octavo.serving.schema.decode import decode, is_large
from octavo.serving.schema.reader import Unknown
from octavo.serving.schema.rules import rules_of
from octavo.serving.translation import TranslationContext
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError
from octavo.workers.jobs import BodyJob, PreparedPrompt, PromptJob, ReadBody, Refused, with_texts
from octavo.workers.pool import refusal

if TYPE_CHECKING:
    from octavo.workers.prompts import PromptMaker

T = TypeVar("T", bound=msgspec.Struct)
A = TypeVar("A", bound=GenerationRequest | PromptJob)


@dataclass(frozen=True, slots=True)
class Body(Generic[T, A]):
    """The request, its translation and its prompts, as they were read from a body."""

    request: T
    asked: A
    prompts: list[PreparedPrompt | Refused] | None  # if a worker has read it
    kept: bytes  # as the rules of the request's struct say


async def read(
    exchange: Exchange, kind: type[T], translate: Callable[[TranslationContext, T], A]
) -> tuple[T, A, list[PreparedPrompt | Refused] | None]:
    """Return the request, its translation and, if a worker has read it, its prompts.

    What a worker has read comes without prompts. Raise ApiError for a body that is not valid.
    `translate` is a function of a module, which a worker finds by its name.
    """
    body = await exchange.body()
    if exchange.dialect.decode is not None:
        request: T = exchange.dialect.decode(exchange, body, kind)
        await exchange.select(request)
        return request, translate(exchange.server.context, request), None
    made: Body[T, A] = await read_with(exchange, body, kind, translate)
    return made.request, made.asked, made.prompts


async def read_with(
    exchange: Exchange,
    body: bytes,
    kind: type[T],
    translate: Callable[..., A],
    given: tuple[bytes, ...] = (),
) -> Body[T, A]:
    """Read a body; `given` are further arguments of its translation, such as an earlier one."""
    server = exchange.server
    if not (is_large(body) or any(map(is_large, given))):
        request = exchange.accept(kind, *decode(body, kind))
        await exchange.select(request)
        kept = rules_of(kind).kept(request)
        return Body(request, translate(server.context, request, *given), None, kept)
    job = BodyJob(
        body=body,
        given=given,
        kind=_name(kind),
        translate=_name(translate),
        context=msgspec.Raw(msgspec.msgpack.encode(server.context)),
    )
    answers: list[ReadBody] = []

    async def ask() -> None:
        answers.append(await server.prompt_pool.read_body(job, exchange.owner))

    # In a task that ends when the client leaves.
    await RequestTask(exchange).run(ask(), server.config.max_request_seconds)
    (answer,) = answers
    request = msgspec.msgpack.decode(answer.request, type=kind)
    unknown = tuple(Unknown(*each) for each in answer.unknown)
    request = exchange.accept(kind, request, unknown)
    await exchange.select(request)
    return Body(request, translate(server.context, request), answer.prompts, answer.kept)


async def prompt_of(
    exchange: Exchange,
    job: PromptJob,
    prepared: list[PreparedPrompt | Refused] | None,
    names: Mapping[str, str],
) -> PreparedPrompt:
    """Return what a worker makes of a job, or the one that has read the body has made of it.

    An error of the prompt has the dialect's name of its field, which is one of `names`.
    """
    try:
        if prepared is None:
            return await exchange.server.prompt_pool.prepare(job, exchange.owner)
        (made,) = prepared
        if isinstance(made, Refused):
            raise refusal(made)
        return made
    except ApiError as error:
        raise error.renamed(names) from None


def read_body(maker: PromptMaker, job: BodyJob) -> ReadBody | Refused:
    """Decode, translate and prepare a body in a worker; refuse it with the field at fault."""
    kind, translate = (find_object(each, "module:name") for each in (job.kind, job.translate))
    context = msgspec.msgpack.decode(job.context, type=TranslationContext)
    try:
        request, unknown = decode(job.body, kind)
        asked = translate(context, request, *job.given)
        made = jobs_of(asked, context.facts, logs_prompts=context.log_prompts)
    except ApiError as error:
        return Refused(
            message=error.message, param=error.param, code=error.code, status=error.status
        )
    jobs = [_as_sent(job) for job in made]
    return ReadBody(
        request=msgspec.msgpack.encode(rules_of(kind).without_prompts(request)),
        unknown=list(unknown),
        prompts=with_texts(maker.make_all(jobs), jobs),
        kept=rules_of(kind).kept(request),
    )


def _as_sent(job: PromptJob) -> PromptJob:
    """Return a job as it arrives from the server: its messages are plain data, not structs."""
    if job.conversation is None:
        return job
    messages = msgspec.to_builtins(job.conversation.messages)
    conversation = msgspec.structs.replace(job.conversation, messages=messages)
    return msgspec.structs.replace(job, conversation=conversation)


def _name(what: Any) -> str:
    return f"{what.__module__}:{what.__qualname__}"
