"""/v1/completions: continuations of texts and of token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from octavo.api.outputs import CompletionOutput, PromptLogprobs, RequestOutput
from octavo.dialects.common.completions import completion_request
from octavo.dialects.common.dialect import COMPLETION_ID, frame
from octavo.dialects.common.logprobs import (
    Pieces,
    TextToken,
    answer_tokens,
    completion_logprobs,
    most_beside,
    prompt_logprobs,
    prompt_tokens,
)
from octavo.dialects.common.schema.completion import (
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionRequest,
    CompletionResponse,
)
from octavo.dialects.common.writer import TEXT, OpenAIWriter, Template, read_deltas, usage_of
from octavo.formats.deltas import TextDelta
from octavo.serving.bounds.turns import Turns
from octavo.serving.exchange import Exchange
from octavo.serving.operation import (
    TURN,
    GenerationRequest,
    PreparedRequest,
    TokenCounts,
)
from octavo.serving.translation import TranslationContext
from octavo.transport.exchange import encode


def translate(context: TranslationContext, request: CompletionRequest) -> GenerationRequest:
    """Return the neutral form of a request to continue one prompt or several."""
    return completion_request(context, request, CompletionWriter)


class CompletionWriter(OpenAIWriter):
    """Completions, written as chunks or as a whole."""

    chunk = CompletionChunk

    def __init__(
        self, request: CompletionRequest, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        super().__init__(exchange, request, prepared, COMPLETION_ID)
        self._request = request
        self._prompts = prepared.prompts
        self._num_samples = prepared.sampling.n
        self._drops_output = prepared.asked.drops_output
        self._offsets: dict[int, int] = {}  # by choice, where its next token's text begins
        self._prompt_logprobs: dict[int, PromptLogprobs] = {}  # by prompt, if they are echoed
        self._sends_text_only = not (
            self._sends_usage_always
            or request.return_token_ids
            or request.return_prompt_text
            or request.logprobs is not None
            or self._drops_output
        )
        self._most = most_beside(request.logprobs, request.logprob_token_ids)

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Return the warnings; otherwise completions begin with text."""
        return self._warned(self._chunk(counts=counts))

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield a chunk for each continuation that has something new."""
        for one in output.outputs:
            deltas = one.deltas
            if not (one.token_ids or deltas):
                continue
            index = prompt_index * self._num_samples + one.index
            if self._sends_text_only and len(deltas) == 1 and type(deltas[0]) is TextDelta:
                template = self._templates.get(index)
                if template is not None:  # the first may hold more
                    yield encode(deltas[0].text).join(template.sides)
                    continue
                choice = CompletionChunkChoice(index=index, text=TEXT)
                self._templates[index] = Template(self._chunk(choice))
            choice = CompletionChunkChoice(index=index, text="")
            yield from self._fill(choice, prompt_index, output, one)
            if choice.text or choice.finish_reason or choice.logprobs or choice.token_ids:
                yield frame(encode(self._chunk(choice, counts=counts)))

    def _response(
        self, outputs: list[RequestOutput], counts: TokenCounts
    ) -> Pieces[CompletionResponse]:
        choices = []
        turns = Turns()
        for prompt_index, output in enumerate(outputs):
            if turns.is_due():
                yield TURN
            for one in output.outputs:
                index = prompt_index * self._num_samples + one.index
                choice = CompletionChoice(index=index, text="")
                yield from self._fill(choice, prompt_index, output, one)
                most = self._request.prompt_logprobs
                if most is not None and output.prompt_logprobs:
                    written: Any = yield from prompt_logprobs(output.prompt_logprobs, most)
                    choice.prompt_logprobs = written
                choices.append(choice)
        return CompletionResponse(**self._named, choices=choices, usage=usage_of(counts))

    def _fill(
        self,
        choice: CompletionChoice | CompletionChunkChoice,
        prompt_index: int,
        output: RequestOutput,
        one: CompletionOutput,
    ) -> Pieces[None]:
        """Write what is new of a continuation into its choice; yield turns."""
        request = self._request
        is_first = choice.index not in self._offsets
        echoes = bool(is_first and request.echo)
        text, finish = read_deltas(one.deltas)
        choice.text = "" if self._drops_output else text
        if finish is not None:
            choice.finish_reason, choice.stop_reason = finish.reason, finish.stop
            if self._drops_output:
                choice.finish_reason, choice.stop_reason = "length", None
        prompt = self._prompts[prompt_index]
        if echoes:
            choice.text = prompt.text + choice.text
        if request.logprobs is not None:
            tokens = self._text_tokens(prompt_index, output, one, echoes=echoes)
            offset = self._offsets.get(choice.index, 0)
            written: tuple[Any, int] = yield from completion_logprobs(
                tokens, self._most, self._texts, offset
            )
            choice.logprobs, self._offsets[choice.index] = written
        self._offsets.setdefault(choice.index, 0)
        if request.return_token_ids:
            choice.token_ids = [] if self._drops_output else one.token_ids
            if is_first:
                choice.prompt_token_ids = prompt.token_ids
        if request.return_prompt_text and is_first:
            choice.prompt_text = prompt.text

    def _text_tokens(
        self, prompt_index: int, output: RequestOutput, one: CompletionOutput, *, echoes: bool
    ) -> Iterator[TextToken]:
        """Yield the tokens of what is new, those of the prompt included if it is echoed."""
        request, tokenizer = self._request, self._texts.tokenizer
        if echoes:
            if output.prompt_logprobs is not None:  # comes with the first continuation
                self._prompt_logprobs[prompt_index] = output.prompt_logprobs
            ids = output.prompt_ids
            positions = self._prompt_logprobs.get(prompt_index) or [None] * len(ids)
            text = self._prompts[prompt_index].text
            yield from prompt_tokens(text, ids, positions, tokenizer)
        if not self._drops_output:
            hidden = tokenizer.special_ids if request.skip_special_tokens else frozenset[int]()
            hides_end = not request.include_stop_str_in_output
            yield from answer_tokens(one, hidden, hides_end=hides_end)
