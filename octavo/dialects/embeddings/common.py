"""The parts that these routes share: the neutral request, inputs, errors, the writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from msgspec import Struct

from octavo.api.outputs import RequestOutput
from octavo.api.pooling.inputs import longest_prompt, most_tokens, prefix_of
from octavo.api.pooling.params import PoolingParams
from octavo.api.pooling.tasks import Task, Wanted, wanted
from octavo.dialects.common.arrays import at_conversation, encoded_each, errors_at
from octavo.dialects.common.conversation import conversation_job
from octavo.dialects.common.dialect import error_body
from octavo.dialects.common.schema.chat import MAX_MESSAGES, Message
from octavo.dialects.common.schema.tokens import TokenizeRequest
from octavo.dialects.embeddings.inputs import input_job, inputs_in, is_one
from octavo.dialects.embeddings.schema import (
    EmbeddingRequest,
    InputRequest,
    PooledRequest,
    PooledResponse,
    PooledUsage,
)
from octavo.serving.answers.tool_use import NO_TOOLS
from octavo.serving.answers.writer import BaseWriter
from octavo.serving.bounds.pieces import PiecesWriter
from octavo.serving.bounds.response_size import VALUE_BYTES
from octavo.serving.exchange import Exchange
from octavo.serving.operation import (
    GenerationRequest,
    PreparedRequest,
    TokenCounts,
    Writer,
)
from octavo.serving.preparation import refusals
from octavo.serving.schema.prompts import MAX_PROMPTS, check_characters
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import encode
from octavo.workers.jobs import PromptJob

_ONLY_TEXTS = ("prompt_name",)  # a template decides what is around the messages
_ONLY_MESSAGES = (
    *("chat_template", "chat_template_kwargs"),
    *("add_generation_prompt", "continue_final_message"),
)
Named = Callable[[ApiError, int], ApiError]
Prompts = list[PromptJob | list[int]]
_DATA = b'"data":[]'  # in a response; in a string its quotes would be escaped


def wanted_of(context: TranslationContext, task: Task, request: PooledRequest) -> Wanted:
    """Return what a request needs of the model; raise ApiError if the model cannot do it."""
    activation = request.use_activation
    if activation is None:  # the older names
        activation = getattr(request, "normalize", getattr(request, "activation", None))
    with refusals():
        params = PoolingParams(
            pooling=getattr(request, "pooling", None),
            dimensions=getattr(request, "dimensions", None),
            use_activation=activation,
        )
        return wanted(context.facts, task, params)


def pooled_request(
    context: TranslationContext,
    request: PooledRequest,
    prompts: Prompts,
    asked: Wanted,
    writer: Callable[..., PooledWriter],
    named: Named,
) -> GenerationRequest:
    """Return the neutral request; `named` names the field of an error, by its prompt's index."""
    if request.truncate_prompt_tokens == 0:
        name = "truncate_prompt_tokens"
        raise invalid(f"{name}=0 leaves nothing of a text; give 1 at least, or -1", name)
    with refusals():
        most = most_tokens(context.facts, request.truncate_prompt_tokens)
    in_pieces: int | None = None
    if context.max_embed_len is not None and most is None and _is_one_vector(request, asked):
        in_pieces = max(context.max_embed_len, longest_prompt(context.facts))
    num_repeated = _num_repeated(request, prompts)
    try:
        check_characters(num_repeated, len(prompts), "prompt")
    except ApiError as error:
        raise named(error, 0) from None
    return GenerationRequest(
        prompts=prompts,
        num_repeated=num_repeated,
        sampling={"pooling": asked.pooling, "detokenize": False, "temperature": 0.0},
        writer=partial(_writer, writer, request, asked),
        named=named,
        max_tokens=0,
        keep_tokens=most,
        keeps_end=False,
        keeps_frame=True,
        most_in_pieces=in_pieces,
        cache_salt=request.cache_salt,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
    )


def _num_repeated(request: PooledRequest, prompts: Prompts) -> int:
    """Return the characters of several prompts that share a query, or a template's variables."""
    if len(prompts) == 1:
        return 0
    shared = [getattr(request, name, None) for name in ("chat_template", "chat_template_kwargs")]
    num_shared = len(encode(shared)) if any(shared) else 0
    pairs = [job.pair for job in prompts if isinstance(job, PromptJob) and job.pair is not None]
    num_paired = sum(
        len(each.query) + len(each.document) + len(each.instruction or "") for each in pairs
    )
    return num_shared * len(prompts) + num_paired


def _is_one_vector(request: PooledRequest, asked: Wanted) -> bool:
    """Return whether an embedding is asked for, which may be the mean of several."""
    is_classes = asked.pooling.head == "classify" or asked.is_each_token
    return isinstance(request, EmbeddingRequest) and not is_classes


def _writer(
    writer: Callable[..., PooledWriter],
    request: PooledRequest,
    asked: Wanted,
    exchange: Exchange,
    prepared: PreparedRequest,
) -> Writer:
    made = writer(request, asked, exchange, prepared)
    return made if prepared.owners is None else PiecesWriter(made, prepared.owners)


def inputs_of(context: TranslationContext, request: InputRequest) -> list[PromptJob | list[int]]:
    """Return what is to be pooled, one prompt each."""
    given, made = request.input, Prompts()
    check_given(request)
    if given is None:
        made += conversation_jobs(context, request)
        return made
    with refusals():
        prefix = prefix_of(context.facts, request.prompt_name)
    is_framed = request.add_special_tokens is not False
    inputs = inputs_in(given, "input")
    for index, each in enumerate(inputs):
        name = "input" if is_one(given) else f"input[{index}]"
        made.append(input_job(each, name, prefix, is_framed=is_framed))
    return made


def input_errors(request: InputRequest) -> Named:
    """Return what names the field of an error, by the place of its input."""
    given = request.input
    if given is None:
        return conversation_errors(request)
    if is_one(given):
        return errors_at(lambda index: "input")
    return errors_at(lambda index: f"input[{index}]")


class PooledWriter(BaseWriter):
    """The part of a writer that these routes share; their answers come whole."""

    prefix: ClassVar[str]
    envelope: ClassVar[type[PooledResponse]]  # of the response; its data are written into it

    def __init__(
        self, request: Any, asked: Wanted, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        self.request = request
        self.asked = asked
        self.id = f"{self.prefix}{exchange.request_id}"
        self.created = exchange.created
        self.model = exchange.model_name
        self.labels = exchange.server.llm.facts.pooling.labels

    failure = staticmethod(error_body)

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the response; each input's part is encoded alone, and others have their turns."""
        usage = PooledUsage(prompt_tokens=counts.prompt, total_tokens=counts.prompt)
        envelope = self.envelope(
            id=self.id, created=self.created, model=self.model, data=[], usage=usage
        )
        head, _, tail = encode(envelope).partition(_DATA)
        yield head + _DATA[:-1]
        yield from self.parts(outputs)
        yield b"]" + tail

    def parts(self, outputs: Sequence[RequestOutput]) -> Iterator[bytes]:
        """Yield the data as JSON, with a `TURN` after each piece of long work."""
        # What is made of a vector may be as short as a score.
        least = VALUE_BYTES * len(outputs[0].hidden_state or ())
        yield from encoded_each(self.data(outputs), least)

    def data(self, outputs: Sequence[RequestOutput]) -> Iterator[Struct]:
        """Yield the part of the answer that each input has, in order."""
        raise NotImplementedError


def check_given(request: InputRequest) -> None:
    """Raise ApiError unless there are inputs or messages, with what belongs to them alone."""
    if (request.input is None) == (request.messages is None):
        raise invalid("give either input, with texts, or messages", "input")
    has_texts = request.input is not None
    for name in _ONLY_MESSAGES if has_texts else _ONLY_TEXTS:
        if getattr(request, name):
            what = "belongs to messages" if has_texts else "is put before texts in input"
            raise invalid(f"{name} {what}; leave it out", name)


def conversation_jobs(context: TranslationContext, request: InputRequest) -> list[PromptJob]:
    """Return a job for each conversation; raise ApiError for what is not supported."""
    conversations = _separate(request.messages or [])
    if request.add_generation_prompt and request.continue_final_message:
        raise invalid(
            "continue_final_message leaves the last message open, and add_generation_prompt opens "
            "another one; give one of them",
            "continue_final_message",
        )
    jobs: list[PromptJob] = []
    for messages in conversations:
        one = TokenizeRequest(
            messages=messages,
            add_special_tokens=bool(request.add_special_tokens),
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            chat_template=request.chat_template,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        try:
            jobs.append(conversation_job(one, context, NO_TOOLS))
        except ApiError as error:
            raise conversation_errors(request)(error, len(jobs)) from None
    return jobs


def conversation_errors(request: InputRequest) -> Callable[[ApiError, int], ApiError]:
    """Return what names the field of an error, by the place of its conversation."""
    is_one = not any(isinstance(each, list) for each in request.messages or ())

    def named(error: ApiError, index: int) -> ApiError:
        error = error.renamed({"template": "chat_template", "prompt": "messages"})
        return error if is_one else at_conversation(error, index)

    return named


def _separate(given: list[Message | list[Message]]) -> list[list[Message]]:
    """Return one conversation or several as a list of conversations."""
    one = [each for each in given if isinstance(each, Message)]
    several = [each for each in given if isinstance(each, list)]
    if not given or not all(several):
        raise invalid("a conversation is empty; give at least one message", "messages")
    if one and several:
        raise invalid("messages mixes conversations with messages; give one kind", "messages")
    if len(several) > MAX_PROMPTS:
        raise invalid(
            f"messages has {len(several)} conversations; at most {MAX_PROMPTS} are accepted: "
            "divide them among requests",
            "messages",
        )
    if max(map(len, several), default=0) > MAX_MESSAGES:
        raise invalid(f"a conversation has more than {MAX_MESSAGES} messages", "messages")
    return several or [one]
