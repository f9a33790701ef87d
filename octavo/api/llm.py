"""`LLM`: a model in this process, for batches of prompts."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from octavo.api.beam_search import BeamSearchParams, search
from octavo.api.embeddings import asking_for, embedded, pooled
from octavo.api.local_model import LocalModel
from octavo.api.offline_runner import OfflineRequest, OfflineRunner, first_error, place
from octavo.api.outputs import (
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    RequestError,
    RequestOutput,
)
from octavo.api.prompts import Input, Prompt, is_many, read_prompt
from octavo.api.requests import PLAIN, Options
from octavo.core.request import ResetPrefixCache
from octavo.core.sampling_params import LogitsProcessor, Pooling, SamplingParams
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
    named functions that requests may ask for by name. `close` gives the memory back; so does
    leaving a `with` statement.
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
        """Give the model's memory back. Later calls are refused; closing twice is no error."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._model.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's makers recommend."""
        return self._model.default_sampling()

    def reset_prefix_cache(self) -> bool:
        """Share no KV computed before now; True, for that never fails."""
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
        says why in `outputs[0].error`; the others are whole.
        """
        return self._run(self._read_all(prompts), sampling_params, use_tqdm, priority, cache_salt)

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
            try:
                text = template.render(
                    conversation,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    variables=chat_template_kwargs,
                )
            except RequestError as error:
                where = f"conversations[{index}]: " if len(many) > 1 else ""
                raise type(error)(where + str(error)) from None
            # The template writes special tokens itself.
            ids = self._model.tokenizer.encode(text, add_special_tokens=False)
            prompts.append({"prompt": text, "prompt_token_ids": ids})
        return self._run(self._read_all(prompts), sampling_params, use_tqdm, None, "")

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "last",
        normalize: bool = True,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """Each prompt as a vector of length one, made of the model's last hidden states.

        `pooling` takes the last token's, their mean over the prompt, or the first token's (cls).
        """
        outputs = self._pool(prompts, pooling, use_tqdm)
        return [embedded(output, normalize) for output in outputs]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "last",
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput]:
        """The same vectors as the model gives them, of any length."""
        return [pooled(output) for output in self._pool(prompts, pooling, use_tqdm)]

    def _pool(
        self, prompts: Prompt | Sequence[Prompt], pooling: Pooling, use_tqdm: bool
    ) -> list[RequestOutput]:
        return self._run(self._read_all(prompts), asking_for(pooling), use_tqdm, None, "")

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[RequestOutput]:
        """The most probable continuations of each prompt, best first."""
        if not isinstance(params, BeamSearchParams):
            raise RequestError(
                f"params must be BeamSearchParams, not {type(params).__name__}; "
                "for example BeamSearchParams(beam_width=4, max_tokens=32)"
            )
        model, results = self._model.table.model, []

        def run(inputs: Sequence[Input], sampling: SamplingParams) -> list[RequestOutput]:
            return self._run(inputs, sampling, False, None, "", is_trusted=True)

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
        model = self._model.table.model
        inputs = []
        for index, prompt in enumerate(many):
            try:
                inputs.append(read_prompt(prompt, model.tokenizer, model.vocabulary))
            except RequestError as error:
                raise RequestError(place(index, len(many)) + str(error)) from None
        return inputs

    def _run(
        self,
        inputs: Sequence[Input],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        shows_progress: bool,
        priorities: Sequence[int] | None,
        cache_scope: str,
        *,
        is_trusted: bool = False,
    ) -> list[RequestOutput]:
        if sampling is None:
            sampling = self._model.default_sampling()
        each = _for_each(sampling, len(inputs), "sampling_params")
        options = [PLAIN] * len(inputs)
        if priorities is not None or cache_scope:
            levels = _for_each(0 if priorities is None else priorities, len(inputs), "priority")
            options = [Options(level, cache_scope=cache_scope) for level in levels]
        jobs = list(map(OfflineRequest, inputs, each, options))
        outputs = self._runner.run(jobs, shows_progress=shows_progress, is_trusted=is_trusted)
        failure = first_error(outputs)
        if failure is not None:
            index, message = failure
            if is_trusted or each[index].pooling is not None:  # there is no half of such a result
                raise RequestError(place(index, 1 if is_trusted else len(inputs)) + message)
            log.warning("%s%s; its finish_reason is 'error'", place(index, len(inputs)), message)
        return outputs


def _for_each(value: Any, count: int, name: str) -> list[Any]:
    """One value for all, or a list with one for each."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != count:
            raise RequestError(f"{len(value)} {name} for {count} prompts: give one, or one each")
        return list(value)
    return [value] * count
