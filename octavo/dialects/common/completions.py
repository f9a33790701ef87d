"""The translation of a request to continue texts or token ids in OpenAI's form."""

from __future__ import annotations

from collections.abc import Callable

from octavo.dialects.common.beams import bind_beams
from octavo.dialects.common.parameters import generation_request
from octavo.dialects.common.schema.completion import (
    CompletionRequest,
)
from octavo.dialects.common.writer import (
    no_writer,
)
from octavo.serving.operation import (
    GenerationRequest,
    Writer,
)
from octavo.serving.schema.prompts import MAX_PROMPTS, separate
from octavo.serving.translation import TranslationContext
from octavo.text.pieces import Infill
from octavo.transport.errors import invalid
from octavo.workers.jobs import PromptJob

DEFAULT_MAX_TOKENS = 16


def completion_request(
    context: TranslationContext,
    request: CompletionRequest,
    writer: Callable[..., Writer] = no_writer,
) -> GenerationRequest:
    """Return the neutral form of a request to continue one prompt or several."""
    num_samples = request.n or 1
    asked = separate(request.prompt, "prompt")
    if len(asked) * num_samples > MAX_PROMPTS:
        raise invalid(
            f"{len(asked)} prompts with n={num_samples} are more than {MAX_PROMPTS} texts", "prompt"
        )
    prompts: list[PromptJob | list[int]] = []
    suffix = request.suffix or ""
    if suffix and request.truncate_prompt_tokens is not None:
        raise invalid("truncate_prompt_tokens would cut what suffix needs; send one", "suffix")
    for each in asked:
        if isinstance(each, str):
            special = request.add_special_tokens
            infill = Infill(suffix=suffix) if suffix else None
            prompts.append(PromptJob(text=each, infill=infill, add_special_tokens=special))
        elif suffix:
            raise invalid("suffix needs a prompt that is a text, not token ids", "suffix")
        else:
            prompts.append(each)
    if request.logprobs is True:
        raise invalid(
            "logprobs is the number of the likeliest tokens in completions: give 0, which asks for "
            "the chosen ones alone, or more",
            "logprobs",
        )
    if request.logprobs is False:
        request.logprobs = None
    if request.logprob_token_ids and request.logprobs is None:
        raise invalid("logprob_token_ids needs logprobs, such as logprobs=0", "logprob_token_ids")
    wanted = request.max_tokens
    if wanted == 0 and not request.echo:
        raise invalid("max_tokens=0 needs echo=true, or the answer would be empty", "max_tokens")
    if wanted is not None:
        wanted = max(1, wanted)
    made = generation_request(request, prompts, wanted, request.logprobs, writer)
    made.default_max_tokens = max(DEFAULT_MAX_TOKENS, request.min_tokens)
    made.drops_output = request.max_tokens == 0
    made.wants_text |= bool(request.echo)
    if request.echo and request.logprobs is not None:
        made.sampling.setdefault("prompt_logprobs", request.logprobs)
    bind_beams(request, made)
    return made
