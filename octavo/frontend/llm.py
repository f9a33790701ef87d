"""`LLM`: a model in this process, for batches of prompts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from octavo.config import EngineArguments
from octavo.core.request import Request
from octavo.core.sampling_params import LogitsProcessor, RequestOutputKind, SamplingParams
from octavo.frontend.beam_search import BeamSearchParams, search
from octavo.frontend.chat_template import Message
from octavo.frontend.desk import PLAIN, Options
from octavo.frontend.inputs import Input, Prompt, is_many, read_prompt
from octavo.frontend.model import LocalModel
from octavo.frontend.outputs import PoolingOutput, RequestError, RequestOutput
from octavo.frontend.progress import Progress
from octavo.loader import DEFAULT_MODEL

Conversation = Sequence[Message]


class LLM:
    """A model, ready to generate.

    >>> llm = LLM("smollm2")
    >>> llm.generate("The capital of France is")[0].outputs[0].text

    `options` are the fields of `octavo.config.EngineArguments`. `logits_processors` are named
    functions that requests may ask for by name.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        logits_processors: Mapping[str, LogitsProcessor] | None = None,
        **options: Any,
    ) -> None:
        self._model = LocalModel(EngineArguments(model=model, **options), logits_processors)
        self._num_requests = 0
        self._death: BaseException | None = None  # what broke a step off

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._model.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's makers recommend."""
        return self._model.default_sampling()

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
        before anything is begun.
        """
        many: Sequence[Any] = prompts if is_many(prompts) else [prompts]  # type: ignore[assignment]
        inputs = [self._read(prompt) for prompt in many]
        return self._run(inputs, sampling_params, use_tqdm, priority, cache_salt)

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
        """Answer one conversation or many, written as prompts by the model's chat template."""
        template = self._model.template(chat_template, with_tools=bool(tools))
        many: Sequence[Any] = messages
        if not messages or isinstance(messages[0], Mapping):
            many = [messages]
        inputs = []
        for conversation in many:
            text = template.render(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=chat_template_kwargs,
            )
            # The template writes special tokens itself.
            ids = self._model.tokenizer.encode(text, add_special_tokens=False)
            inputs.append(self._read({"prompt": text, "prompt_token_ids": ids}))
        return self._run(inputs, sampling_params, use_tqdm, None, "")

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, normalize: bool = True, use_tqdm: bool = True
    ) -> list[PoolingOutput]:
        """The last hidden state of each prompt's last token, brought to length one."""
        many: Sequence[Any] = prompts if is_many(prompts) else [prompts]  # type: ignore[assignment]
        inputs = [self._read(prompt) for prompt in many]
        asked = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, pooling="last")
        results = []
        for output in self._run(inputs, asked, use_tqdm, None, ""):
            assert output.hidden_state is not None
            length = math.hypot(*output.hidden_state) if normalize else 1.0
            values = [value / length for value in output.hidden_state]
            results.append(PoolingOutput(output.request_id, output.prompt_token_ids, values))
        return results

    def encode(
        self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool = True
    ) -> list[PoolingOutput]:
        """The last hidden state of each prompt's last token, as the model gives it."""
        return self.embed(prompts, normalize=False, use_tqdm=use_tqdm)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[RequestOutput]:
        """The most probable continuations of each prompt, best first."""
        many: Sequence[Any] = prompts if is_many(prompts) else [prompts]  # type: ignore[assignment]
        model, results = self._model.desk.model, []

        def run(inputs: Sequence[Input], sampling: SamplingParams) -> list[RequestOutput]:
            return self._run(inputs, sampling, False, None, "", is_trusted=True)

        for prompt in many:
            read = self._read(prompt)
            beams = search(read, params, model, run)
            for beam in beams:
                kept = beam.token_ids[:-1] if beam.finish_reason == "stop" else beam.token_ids
                stream = model.tokenizer.detokenizer(context=read.token_ids)
                beam.text = "".join([*map(stream.push, kept), stream.finish()])
            self._num_requests += 1
            name = str(self._num_requests)
            results.append(RequestOutput(name, read.text, list(read.token_ids), beams, True))
        return results

    def _read(self, prompt: Prompt) -> Input:
        model = self._model.desk.model
        return read_prompt(prompt, model.tokenizer, model.vocabulary)

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
        if self._death is not None:
            raise RuntimeError(
                "a step of this LLM was broken off by an error or Ctrl-C; make a new LLM"
            ) from self._death
        each = _for_each(sampling or self._model.default_sampling(), len(inputs), "sampling_params")
        options = [PLAIN] * len(inputs)
        if priorities is not None or cache_scope:
            levels = _for_each(priorities or 0, len(inputs), "priority")
            options = [Options(level, cache_scope=cache_scope) for level in levels]
        desk, arrival = self._model.desk, self._model.now()
        names: list[str] = []
        backlog: deque[Request] = deque()
        try:
            for prompt, parameters, option in zip(inputs, each, options, strict=True):
                self._num_requests += 1
                names.append(str(self._num_requests))
                # Nobody sees what comes before the end, so it need not be put together.
                parameters = replace(parameters, output_kind=RequestOutputKind.FINAL_ONLY)
                backlog.extend(
                    desk.open(names[-1], prompt, parameters, arrival, option, is_trusted)
                )
            return self._drive(names, backlog, shows_progress)
        except RequestError:
            raise
        except BaseException as error:  # out of a step, Ctrl-C too: its result will never come
            self._death = error
            raise
        finally:
            for name in names:  # nothing must go on running for a call that has failed
                for abort in desk.close(name):
                    self._model.core.on_event(abort)
            while self._death is None and self._model.core.has_work:
                self._model.core.step()

    def _drive(
        self, names: Sequence[str], backlog: deque[Request], shows_progress: bool
    ) -> list[RequestOutput]:
        core, desk = self._model.core, self._model.desk
        outputs: dict[str, RequestOutput] = {}
        progress = Progress(len(names), shows_progress)
        most = self._model.engine.config.core.max_num_waiting
        while len(outputs) < len(names):
            while backlog and core.scheduler.queue.num_waiting < most:
                core.on_event(backlog.popleft())
            events = core.step()
            for event in events:
                output, aborts = desk.receive(event)
                for abort in aborts:
                    core.on_event(abort)
                if output is not None and output.finished:
                    outputs[output.request_id] = output
            progress.show(len(outputs), sum(len(event.tokens) for event in events))
        progress.close()
        return [outputs[name] for name in names]


def _for_each(value: Any, count: int, name: str) -> list[Any]:
    """One value for all, or a list with one for each."""
    if isinstance(value, Sequence):
        if len(value) != count:
            raise RequestError(f"{len(value)} {name} for {count} prompts: give one, or one each")
        return list(value)
    return [value] * count
