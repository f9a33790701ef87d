"""Conversations as the inputs of embeddings and classes: what a chat template makes of messages."""

from __future__ import annotations

from collections.abc import Callable

from octavo.dialects.common.arrays import at_conversation
from octavo.dialects.common.conversation import conversation_job
from octavo.dialects.common.schema.chat import MAX_MESSAGES, Message
from octavo.dialects.common.schema.tokens import TokenizeRequest
from octavo.dialects.embeddings.schema import InputRequest
from octavo.serving.answers.tool_use import NO_TOOLS
from octavo.serving.schema.prompts import MAX_PROMPTS
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError, invalid
from octavo.workers.jobs import PromptJob

_ONLY_TEXTS = ("prompt_name",)  # a template decides what is around the messages
_ONLY_MESSAGES = (
    *("chat_template", "chat_template_kwargs"),
    *("add_generation_prompt", "continue_final_message"),
)


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
