"""The making of prompts: chat templates are rendered, texts tokenised and cut."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.core.sampling_params import TOO_LONG
from octavo.text.breakers import breaker_tokens
from octavo.text.chat.messages import ChatTemplateError, check_surrogates
from octavo.text.chat.system_first import render_with_system, with_fewer_turns
from octavo.text.chat.template import Place, mask_of
from octavo.text.pairs import Pair, encode_pair, encode_parts
from octavo.text.pieces import InfillError, decoded, infill_tokens, with_pieces
from octavo.text.token_bytes import TokenizerError
from octavo.text.tokenizer import Tokenizer, valid_text
from octavo.workers.jobs import (
    Conversation,
    PreparedPrompt,
    PromptJob,
    Refused,
    default_param,
    packed,
)

if TYPE_CHECKING:
    from octavo.text.chat.template import ChatTemplate

MAX_TEMPLATES = 16  # compiled templates that are kept
MAX_LISTED_TOKENS = 1 << 20  # of one prompt
MAX_MESSAGE_CHARACTERS = 2000  # of an error


class PredictionError(ValueError):
    """A prediction that is longer than any answer."""


class PromptMaker:
    """A tokenizer and the chat templates that were used last, compiled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._compiled = lru_cache(MAX_TEMPLATES)(self._compile)

    def make_all(self, jobs: Sequence[PromptJob]) -> list[PreparedPrompt | Refused]:
        """Prepare prompts in order; a refusal is the last."""
        prompts: list[PreparedPrompt | Refused] = []
        for job in jobs:
            prompts.append(self._made_or_refused(job))
            if isinstance(prompts[-1], Refused):
                break
        return prompts

    def make(self, job: PromptJob) -> PreparedPrompt:
        """Render, tokenise and cut; the text of a job that has one is not sent back."""
        began = time.monotonic()
        text = job.text
        answers = list[Place]() if job.wants_answers else None
        if job.conversation is not None:
            text = self._render(job.conversation, answers)
        elif text is not None and job.text_tokens is not None:
            text = self.tokenizer.beginning(text, job.text_tokens)
        rendered = time.monotonic()
        token_ids, second_from, places = self._tokenised(job, text)
        encode = self.tokenizer.encode
        if job.fit_tokens is not None and len(token_ids) > job.fit_tokens:
            tokenise = partial(encode, add_special_tokens=job.add_special_tokens)
            text, token_ids = with_fewer_turns(
                job.conversation, self._render, tokenise, job.fit_tokens
            )
        bad_words = [encode(word, add_special_tokens=False) for word in job.bad_words]
        is_cut = job.keep_tokens is not None and len(token_ids) > job.keep_tokens
        if is_cut:
            assert job.keep_tokens is not None
            start = len(token_ids) - job.keep_tokens if job.keeps_end else 0
            kept = slice(start, start + job.keep_tokens)
            token_ids, places = token_ids[kept], places[kept]
        is_too_long = job.max_tokens is not None and len(token_ids) > job.max_tokens
        if is_too_long or not job.wants_text:
            text = ""
        elif job.keeps_text:
            text = job.text or ""
        elif is_cut or text is None or (job.keeps_frame and len(token_ids) == job.keep_tokens):
            text = decoded(self.tokenizer, token_ids)
        has_same_text = bool(text) and text is job.text
        prepared = PreparedPrompt(
            text="" if has_same_text else text,
            has_same_text=has_same_text,
            packed_ids=b"" if is_too_long or job.lists_tokens else packed(token_ids),
            num_tokens=len(token_ids),
            second_from=second_from,
            bad_words_token_ids=bad_words,
            breaker_ids=breaker_tokens(self.tokenizer, job.breakers),
            packed_prediction=packed(self._predicted(job)),
            packed_places=packed(list(chain(*places)))
            if job.wants_places and not is_too_long
            else b"",
            answer_mask=b"" if answers is None else mask_of(places, answers),
            template_seconds=rendered - began,
            tokenize_seconds=time.monotonic() - rendered,
        )
        return self._listed(prepared, job, token_ids) if job.lists_tokens else prepared

    def _predicted(self, job: PromptJob) -> Sequence[int]:
        """Return the tokens of a prediction; refuse more than an answer could follow."""
        if not job.prediction:
            return array("i", job.packed_prediction)
        ids = self.tokenizer.encode(job.prediction, add_special_tokens=False)
        if job.max_tokens is not None and len(ids) > job.max_tokens:
            raise PredictionError(
                f"prediction has {len(ids)} tokens, and the model's context has {job.max_tokens}: "
                "send the part that the answer is likely to repeat"
            )
        return ids

    def _tokenised(
        self, job: PromptJob, text: str | None
    ) -> tuple[Sequence[int], int, list[Place]]:
        """Return a prompt's tokens, where the second of a pair begins, and the tokens' places."""
        tokenizer, adds = self.tokenizer, job.add_special_tokens
        if job.pair is not None:
            return *self._encode_pair(job.pair, job.keep_tokens), []
        if job.parts:
            return encode_parts(tokenizer, job.parts), 0, []
        if text is None:
            return array("i", job.packed_ids), 0, []
        if job.keeps_frame:
            token_ids, _ = tokenizer.encode_framed(
                text, None, job.keep_tokens, add_special_tokens=adds, keeps_end=job.keeps_end
            )
            return token_ids, 0, []
        if job.infill is not None:
            return infill_tokens(tokenizer, text, job.infill, add_special_tokens=adds), 0, []
        if job.wants_places or job.wants_answers:
            token_ids, places = tokenizer.encode_with_places(text, add_special_tokens=adds)
            return token_ids, 0, places
        return tokenizer.encode(text, add_special_tokens=adds), 0, []

    def _made_or_refused(self, job: PromptJob) -> PreparedPrompt | Refused:
        try:
            return self.make(job)
        except ChatTemplateError as error:
            # A template chooses its length and its characters.
            message = valid_text(str(error)[:MAX_MESSAGE_CHARACTERS])
            return Refused(
                message=message, param=error.param or default_param(job), code=error.code
            )
        except InfillError as error:
            return Refused(message=str(error), param="suffix", code="unsupported_parameter")
        except PredictionError as error:
            return Refused(message=str(error), param="prediction", code=TOO_LONG)
        except TokenizerError as error:
            message = str(error)[:MAX_MESSAGE_CHARACTERS]
            return Refused(message=message, param=default_param(job))

    def _listed(
        self, prepared: PreparedPrompt, job: PromptJob, token_ids: Sequence[int]
    ) -> PreparedPrompt:
        """Add the lists of tokens that an answer contains."""
        if len(token_ids) > MAX_LISTED_TOKENS:
            raise TokenizerError(
                f"the prompt has {len(token_ids)} tokens; at most {MAX_LISTED_TOKENS} are listed"
            )
        to_json = msgspec.json.encode
        strings: list[str] | None = None
        if job.lists_strings:
            strings = [self.tokenizer.id_to_token(token) or "" for token in token_ids]
        listed: list[Any] = list(token_ids)
        if job.lists_pieces:
            listed = with_pieces(self.tokenizer, token_ids)
        return msgspec.structs.replace(
            prepared, listed_tokens=to_json(listed), listed_strings=to_json(strings)
        )

    def _render(self, conversation: Conversation, answers: list[Place] | None = None) -> str:
        tool_format = conversation.tool_format
        shows_tools = bool(conversation.tools) and not (tool_format and tool_format.is_generic)
        template = self._compiled(conversation.template, shows_tools)
        if tool_format is None:
            template.check_tools(conversation.messages, conversation.tools)
        if answers is not None and not template.marks_answers:
            raise ChatTemplateError(
                "the chat template does not mark the assistant's texts with {% generation %}; "
                "leave return_assistant_tokens_mask out, or use a template that does",
                param="return_assistant_tokens_mask",
            )
        render = partial(
            template.render,
            tools=conversation.tools,
            tool_format=tool_format,
            documents=conversation.documents,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            variables=conversation.variables,
            answers=answers,
            content_format=conversation.content_format,
            has_dates=conversation.has_dates,
        )
        text = render_with_system(
            conversation.messages, render, moves_system=conversation.moves_system
        )
        check_surrogates(text)
        return text

    def _encode_pair(self, pair: Pair, most_tokens: int | None) -> tuple[list[int], int]:
        return encode_pair(
            self.tokenizer, pair, lambda source: self._compiled(source, False), most_tokens
        )

    def _compile(self, source: str | None, with_tools: bool) -> ChatTemplate:
        from octavo.text.chat.template import ChatTemplate, choose_template

        if source is None:
            source = choose_template(self.tokenizer.chat_templates, with_tools=with_tools)
        return ChatTemplate(source, self.tokenizer.special_tokens)
