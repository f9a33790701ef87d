"""`LLM`: a model in this process, or in several engines' processes, for batches of prompts."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec import structs

from octavo.adapter_copies.opening import open_copies
from octavo.api.local_model import LocalModel
from octavo.api.offline_runner import OfflineRunner, Take, first_error, place
from octavo.api.outputs import RequestError, RequestOutput
from octavo.api.pooling.served import check_generates, is_cross_encoder
from octavo.api.prompts import Input, Prompt, as_many, read_prompt
from octavo.api.requests import PLAIN, Options, check_request
from octavo.core.sampling_params import (
    LogitsProcessor,
    RequestOutputKind,
    SamplingParams,
)
from octavo.options import DEFAULT_MODEL
from octavo.options.engine import read_arguments
from octavo.options.overrides import split_processors

# What no more than some callers use is imported by the methods that they call.
if TYPE_CHECKING:
    from octavo.api.adapters import LoRARequest
    from octavo.api.beam_search import BeamSearchParams
    from octavo.api.pooling.outputs import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingRequestOutput,
        ScoringRequestOutput,
    )
    from octavo.api.pooling.params import PoolingParams
    from octavo.api.pooling.tasks import Task, Wanted
    from octavo.api.text_model import TextModel
    from octavo.text.chat.messages import Message

    Conversation = Sequence[Message]
    Adapters = LoRARequest | Sequence[LoRARequest | None] | None  # of all prompts, or one for each

log = logging.getLogger(__name__)


class LLM:
    """A model, ready to generate.

    >>> llm = LLM("smollm2")
    >>> llm.generate("The capital of France is")[0].outputs[0].text

    `options` are the fields of `octavo.options.engine.EngineArguments`; by default, no prompt is
    cut for the pace of others (`itl_goal`). `logits_processors` are functions that requests can
    select by name, or names of classes that serve all requests (docs/operations.md). `close` frees
    the memory, and so does leaving a `with` statement.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        logits_processors: Mapping[str, LogitsProcessor] | Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        named, classes = split_processors(logits_processors)
        arguments = read_arguments(model, {**options, **classes})
        if arguments.itl_goal is None:  # its callers wait for whole outputs, so longer steps cost
            arguments = replace(arguments, itl_goal=0.0)  # them nothing
        arguments, self._copies = open_copies(arguments)
        self._model: Any  # TextModel; with the engine itself where that is in this process
        self._runner: Any  # OfflineRunner, or SetRunner for engines in processes of their own
        try:
            if arguments.needs_processes:  # they need an event loop, whose import takes a while
                from octavo.api.set_runner import close_with, start_set

                self._model, self._runner = start_set(arguments, named, self._copies)
                close_with(self, self._runner, self._copies)
            else:
                local = LocalModel(arguments, named)
                self._model, self._runner = local, OfflineRunner(local, self._copies)
        except BaseException:
            self._close_copies()
            raise

    def close(self) -> None:
        """Free the model's memory. Later calls raise an error; a second `close` does nothing."""
        self._runner.close()
        self._close_copies()

    def _close_copies(self) -> None:
        if self._copies is not None:
            self._copies.close()

    @property
    def llm_engine(self) -> Any:
        """Refuse what vLLM's engine has, by name."""
        raise AttributeError(
            "an LLM has no llm_engine, and so no add_lora: give lora_request to generate, chat or "
            "embed, and the adapter is loaded when it is first used"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    @property
    def model(self) -> TextModel:
        """The text side of the model, and the facts about it."""
        model: TextModel = self._model
        return model

    def get_tokenizer(self) -> Any:
        """Return the model's tokenizer."""
        return self._model.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters that the model's makers recommend."""
        defaults: SamplingParams = self._model.defaults
        return defaults

    def reset_prefix_cache(self) -> bool:
        """Share no KV computed before now. It always returns True, because it cannot fail."""
        self._runner.reset_prefix_cache()
        return True

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: Adapters = None,
        priority: Sequence[int] | None = None,
        cache_salt: str = "",
    ) -> list[RequestOutput]:
        """Continue one prompt or many; the outputs are in the prompts' order.

        A prompt is a text, a list of token ids, or a dict with either. Everything is checked
        before anything is begun. A request that fails later has the finish reason "error" and
        the message in `outputs[0].error`; the others are complete.
        """
        inputs = self._read_all(as_many(prompts))
        levels = _for_each(0 if priority is None else priority, len(inputs), "priority")
        options = [Options(level, cache_scope=cache_salt or "") for level in levels]
        return self._run(inputs, sampling_params, use_tqdm, options, lora_request)

    def stream(
        self, prompt: Prompt, take: Take, sampling_params: SamplingParams | None = None
    ) -> None:
        """Continue one prompt, and call `take` with each output as it comes.

        The outputs are those of `AsyncLLM.generate`, without an event loop: what is new in each, or
        all so far, as `output_kind` says. A request that fails raises a RequestError.
        """
        sampling = self._model.defaults if sampling_params is None else sampling_params
        (read,) = self._read_all([prompt])
        request = check_request(self._model, read, sampling)
        failure = first_error(self._runner.run([request], shows_progress=False, take=take))
        if failure is not None:
            raise RequestError(failure[1])

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: Adapters = None,
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
        from octavo.text.chat.messages import conversations

        check_generates(self._model.facts)
        template = self._model.template(chat_template, with_tools=bool(tools))
        tool_format = self._model.tool_format(template)
        many = conversations(messages)
        prompts: list[Prompt] = []
        for index, conversation in enumerate(many):
            with about(f"conversations[{index}]: " if len(many) > 1 else ""):
                text = template.render(
                    conversation,
                    tools=tools,
                    tool_format=tool_format,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    variables=chat_template_kwargs,
                )
            # The template writes special tokens itself.
            ids = self._model.tokenizer.encode(text, add_special_tokens=False)
            prompts.append({"prompt": text, "prompt_token_ids": ids})
        inputs = self._read_all(prompts)
        return self._run(inputs, sampling_params, use_tqdm, lora_request=lora_request)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: Adapters = None,
    ) -> list[EmbeddingRequestOutput]:
        """Return each prompt as a vector for comparing texts, of length one if the model's are."""
        from octavo.api.pooling.results import embedded

        outputs, asked = self._pool(prompts, "embed", pooling_params, use_tqdm, lora_request)
        return [embedded(output, asked) for output in outputs]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        pooling_task: Task | None = None,
        use_tqdm: bool = True,
        lora_request: Adapters = None,
    ) -> list[PoolingRequestOutput]:
        """Return what a task makes of each prompt; "plain" is the pooled state as it is.

        "token_embed" and "token_classify" give a vector for each token of a prompt. The default is
        the task of pooler_config, or else "plain".
        """
        from octavo.api.pooling.results import pooled
        from octavo.api.pooling.tasks import default_task

        task = pooling_task or default_task(self._model.facts, "plain")
        outputs, asked = self._pool(prompts, task, pooling_params, use_tqdm, lora_request)
        return [pooled(output, asked) for output in outputs]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: Adapters = None,
    ) -> list[ClassificationRequestOutput]:
        """Return the probabilities of each prompt's classes."""
        from octavo.api.pooling.results import classified

        outputs, asked = self._pool(prompts, "classify", pooling_params, use_tqdm, lora_request)
        return [classified(output, asked) for output in outputs]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        pooling_params: PoolingParams | None = None,
        *,
        chat_template: str | None = None,
        instruction: str | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> list[ScoringRequestOutput]:
        """Return how well each text of `data_2` fits its own of `data_1`, or the only one.

        A cross-encoder reads both texts at once; `chat_template` is the form in which it does, if
        not the model's own. With any other model it is the similarity of their embeddings.
        """
        from octavo.api.pooling.inputs import pairs_of, read_pair
        from octavo.api.pooling.results import compared, scored
        from octavo.api.pooling.tasks import DEFAULTS, wanted
        from octavo.text.pairs import Pair

        first = [data_1] if isinstance(data_1, str) else list(data_1)
        second = [data_2] if isinstance(data_2, str) else list(data_2)
        places = pairs_of(first, second, ("data_1", "data_2"))
        if not is_cross_encoder(self._model.facts):
            if chat_template is not None or instruction is not None:
                raise RequestError(
                    "chat_template and instruction are for models that read both texts at once; "
                    "this one compares embeddings: leave them out"
                )
            both = [*first, *second]
            outputs, asked = self._pool(both, "embed", pooling_params, use_tqdm, lora_request)
            queries, documents = outputs[: len(first)], outputs[len(first) :]
            return [compared(queries[one], documents[other], asked) for one, other in places]
        params = pooling_params or DEFAULTS
        asked = wanted(self._model.facts, "classify", params)
        inputs, each = [], []
        for index, (place_1, place_2) in enumerate(places):
            pair = Pair(
                query=first[place_1],
                document=second[place_2],
                instruction=instruction or self._model.facts.pooling.instruction or None,
                template=chat_template,
                form=self._model.facts.pooling.pair_form,
            )
            with about(place(index, len(places))):
                read, sampling = read_pair(pair, self._model, asked, params)
            inputs.append(read)
            each.append(sampling)
        outputs = self._run(inputs, each, use_tqdm, lora_request=lora_request)
        return [scored(output, asked) for output in outputs]

    def _pool(
        self,
        prompts: Prompt | Sequence[Prompt],
        task: Task,
        params: PoolingParams | None,
        use_tqdm: bool,
        lora_request: Adapters = None,
    ) -> tuple[list[RequestOutput], Wanted]:
        """Compute what a task needs of each prompt, and say what that is."""
        from octavo.api.pooling.inputs import cut
        from octavo.api.pooling.tasks import DEFAULTS, wanted

        params = params or DEFAULTS
        asked = wanted(self._model.facts, task, params)
        inputs = [cut(prompt, self._model, params) for prompt in as_many(prompts)]
        read = self._read_all(inputs)
        outputs = self._run(read, asked.sampling, use_tqdm, lora_request=lora_request)
        return outputs, asked

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[RequestOutput]:
        """Return the most probable continuations of each prompt, best first."""
        from octavo.api.beam_search import BeamSearch, BeamSearchParams

        if not isinstance(params, BeamSearchParams):
            raise RequestError(
                f"params must be BeamSearchParams, not {type(params).__name__}; "
                "for example BeamSearchParams(beam_width=4, max_tokens=32)"
            )
        model, results = self._model, []

        for read in self._read_all(as_many(prompts)):
            search = BeamSearch(read, params, model)
            while inputs := search.inputs():
                options = [Options(is_beam=True)] * len(inputs)
                for index, output in enumerate(self._run(inputs, search.step, False, options)):
                    search.take(index, output)
                search.advance()
            beams = [
                search.written(index, beam, model, SamplingParams())
                for index, beam in enumerate(search.best())
            ]
            name = self._runner.next_name()
            results.append(RequestOutput(name, read.text, read.token_ids, beams, True))
        return results

    def _read_all(self, prompts: Sequence[Prompt]) -> list[Input]:
        inputs = []
        for index, prompt in enumerate(prompts):
            with about(place(index, len(prompts))):
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
        lora_request: Adapters = None,
    ) -> list[RequestOutput]:
        """Check everything before anything is begun, then run it to its end."""
        if sampling is None:
            sampling = self._model.defaults
        each = _for_each(sampling, len(inputs), "sampling_params")
        options = options or [PLAIN] * len(inputs)
        if lora_request is None:
            return self._run_each(inputs, each, shows_progress, options)
        from octavo.api.adapters import ids_of

        adapters = _for_each(lora_request, len(inputs), "lora_request")
        with ids_of(self._copies, adapters) as ids:
            options = [
                own if lora is None else structs.replace(own, lora=lora)
                for own, lora in zip(options, ids, strict=True)
            ]
            return self._run_each(inputs, each, shows_progress, options)

    def _run_each(
        self,
        inputs: Sequence[Input],
        each: Sequence[SamplingParams],
        shows_progress: bool,
        options: Sequence[Options],
    ) -> list[RequestOutput]:
        """Run requests, each with its own parameters."""
        # The caller did not write the prompts of a beam search, so messages do not number them.
        count = 1 if any(each.is_beam for each in options) else len(inputs)
        requests = []
        for index, (read, params, own) in enumerate(zip(inputs, each, options, strict=True)):
            with about(place(index, count)):
                # Only the end is seen, so that nothing before it need be put together.
                kind = RequestOutputKind.FINAL_ONLY
                requests.append(check_request(self._model, read, params, own, kind))
        outputs: list[RequestOutput] = self._runner.run(requests, shows_progress=shows_progress)
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
