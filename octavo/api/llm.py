"""`LLM`: a model in this process, for batches of prompts."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from octavo.api.beam_search import BeamSearchParams, search
from octavo.api.embeddings import asking_for, embedded, pooled
from octavo.api.local_model import LocalModel
from octavo.api.offline_runner import OfflineRunner, first_error, place
from octavo.api.outputs import (
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    RequestError,
    RequestOutput,
)
from octavo.api.prompts import Input, Prompt, is_many, read_prompt
from octavo.api.requests import PLAIN, Options, check_request
from octavo.core.pooling import Pooling, PoolingKind
from octavo.core.request import ResetPrefixCache
from octavo.core.sampling_params import (
    LogitsProcessor,
    RequestOutputKind,
    SamplingParams,
)
from octavo.engine_arguments import read_arguments
from octavo.loader import DEFAULT_MODEL
from octavo.text.chat.messages import Message, conversations

log = logging.getLogger(__name__)

Conversation = Sequence[Message]


class LLM:
    """A model, ready to generate.

    >>> llm = LLM("smollm2")
    >>> llm.generate("The capital of France is")[0].outputs[0].text

    `options` are the fields of `octavo.engine_arguments.EngineArguments`. `logits_processors` are
    functions that requests can select by name. `close` frees the memory, and so does leaving a
    `with` statement.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        logits_processors: Mapping[str, LogitsProcessor] | None = None,
        **options: Any,
    ) -> None:
        self._model = LocalModel(read_arguments(model, options), logits_processors)
        self._runner = OfflineRunner(self._model)

    def close(self) -> None:
        """Free the model's memory. Later calls raise an error; a second `close` does nothing."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def get_tokenizer(self) -> Any:
        """Return the model's tokenizer."""
        return self._model.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters that the model's makers recommend."""
        return self._model.defaults

    def reset_prefix_cache(self) -> bool:
        """Share no KV computed before now. It always returns True, because it cannot fail."""
        self._runner.send(ResetPrefixCache())
        return True

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        cache_salt: str = "",
    ) -> list[RequestOutput]:
        """Continue one prompt or many; the outputs are in the prompts' order.

        A prompt is a text, a list of token ids, or a dict with either. Everything is checked
        before anything is begun. A request that fails later has the finish reason "error" and
        the message in `outputs[0].error`; the others are complete.
        """
        inputs = self._read_all(prompts)
        levels = _for_each(0 if priority is None else priority, len(inputs), "priority")
        options = [Options(level, cache_scope=cache_salt or "") for level in levels]
        return self._run(inputs, sampling_params, use_tqdm, options)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, written as prompts by the model's chat template.

        The template runs in this process: a sandbox keeps it from everything but its variables,
        and its size and its output are limited, but not its time and memory.
        """
        template = self._model.template(chat_template, with_tools=bool(tools))
        many = conversations(messages)
        prompts: list[Prompt] = []
        for index, conversation in enumerate(many):
            with about(f"conversations[{index}]: " if len(many) > 1 else ""):
                text = template.render(
                    conversation,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    variables=chat_template_kwargs,
                )
            # The template writes special tokens itself.
            ids = self._model.tokenizer.encode(text, add_special_tokens=False)
            prompts.append({"prompt": text, "prompt_token_ids": ids})
        return self._run(self._read_all(prompts), sampling_params, use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling | PoolingKind = "last",
        normalize: bool = True,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """Return each prompt as a vector of length one, made from the model's last hidden states.

        `pooling` selects the last token's, their mean over the prompt, or the first token's (cls).
        """
        outputs = self._pool(prompts, pooling, use_tqdm)
        return [embedded(output, normalize) for output in outputs]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling | PoolingKind = "last",
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput]:
        """Return the vectors of `embed` as the model gives them, without normalising."""
        return [pooled(output) for output in self._pool(prompts, pooling, use_tqdm)]

    def _pool(
        self, prompts: Prompt | Sequence[Prompt], pooling: Pooling | PoolingKind, use_tqdm: bool
    ) -> list[RequestOutput]:
        return self._run(self._read_all(prompts), asking_for(pooling), use_tqdm)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[RequestOutput]:
        """Return the most probable continuations of each prompt, best first."""
        if not isinstance(params, BeamSearchParams):
            raise RequestError(
                f"params must be BeamSearchParams, not {type(params).__name__}; "
                "for example BeamSearchParams(beam_width=4, max_tokens=32)"
            )
        model, results = self._model, []

        def run(inputs: Sequence[Input], sampling: SamplingParams) -> list[RequestOutput]:
            return self._run(inputs, sampling, False, [Options(is_beam=True)] * len(inputs))

        for read in self._read_all(prompts):
            beams = search(read, params, model, run)
            for beam in beams:
                kept = beam.token_ids[:-1] if beam.finish_reason == "stop" else beam.token_ids
                stream = model.tokenizer.detokenizer(context=read.token_ids)
                beam.text = "".join([*map(stream.push, kept), stream.finish()])
            name = self._runner.next_name()
            results.append(RequestOutput(name, read.text, list(read.token_ids), beams, True))
        return results

    def _read_all(self, prompts: Prompt | Sequence[Prompt]) -> list[Input]:
        many: Sequence[Any] = prompts if is_many(prompts) else [prompts]  # type: ignore[assignment]
        inputs = []
        for index, prompt in enumerate(many):
            with about(place(index, len(many))):
                inputs.append(
                    read_prompt(prompt, self._model.tokenizer, self._model.facts.vocabulary)
                )
        return inputs

    def _run(
        self,
        inputs: Sequence[Input],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        shows_progress: bool,
        options: Sequence[Options] = (),
    ) -> list[RequestOutput]:
        """Check everything before anything is begun, then run it to its end."""
        if sampling is None:
            sampling = self._model.defaults
        each = _for_each(sampling, len(inputs), "sampling_params")
        options = options or [PLAIN] * len(inputs)
        # The caller did not write the prompts of a beam search, so messages do not number them.
        count = 1 if any(each.is_beam for each in options) else len(inputs)
        requests = []
        for index, (read, wanted, own) in enumerate(zip(inputs, each, options, strict=True)):
            with about(place(index, count)):
                # Only the end is seen, so that nothing before it need be put together.
                kind = RequestOutputKind.FINAL_ONLY
                requests.append(check_request(self._model, read, wanted, own, kind))
        outputs = self._runner.run(requests, shows_progress=shows_progress)
        failure = first_error(outputs)
        if failure is not None:
            index, message = failure
            if options[index].is_beam or each[index].pooling is not None:  # half of it is useless
                raise RequestError(place(index, count) + message)
            log.warning("%s%s; its finish_reason is 'error'", place(index, count), message)
        return outputs


@contextmanager
def about(what: str) -> Iterator[None]:
    """Put `what` before the message of a RequestError."""
    try:
        yield
    except RequestError as error:
        error.args = (what + str(error),)
        raise


def _for_each(value: Any, count: int, name: str) -> list[Any]:
    """Repeat one value `count` times, or take a list that has one for each."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != count:
            raise RequestError(f"{len(value)} {name} for {count} prompts: give one, or one each")
        return list(value)
    return [value] * count
