"""The error that a client is sent when its request fails in the engine."""

from __future__ import annotations

import logging

from octavo.api.outputs import EngineDeadError, RequestError
from octavo.api.requests import TOO_LONG, FailedRequestError
from octavo.core.structured_outputs import SHAPES
from octavo.serving.admission import Admission
from octavo.serving.operation import PreparedRequest
from octavo.transport.errors import ApiError, invalid, unavailable

log = logging.getLogger(__name__)


def answer_to(
    error: Exception, prepared: PreparedRequest, index: int, admission: Admission, request_id: str
) -> Exception:
    """Return the client's error for one of the engine's, which concerns the prompt `index`.

    What is neither is a bug, and is returned as it is.
    """
    named = prepared.asked.named
    match error:
        case EngineDeadError():
            return unavailable("the engine has stopped", "engine_not_ready")
        case FailedRequestError():
            message = str(error).partition(": ")[2]  # without the engine's own id of the request
        case RequestError():
            return named(invalid(str(error), error.param, error.code), index)
        case _:
            return error
    match error.reason:
        case "refused":
            return named(invalid(message, "max_tokens", TOO_LONG), index)
        case "impossible":
            return named(_impossible(prepared, message), index)
        case "overloaded":
            return admission.rejected("engine_full", message)
    log.error("request %s failed in the engine: %s", request_id, message)
    return ApiError(500, "the engine failed on this request", code="engine_error")


def _impossible(prepared: PreparedRequest, message: str) -> ApiError:
    """Return the error of a request with which no text can agree, or go on."""
    asked, sampling = prepared.asked, prepared.sampling
    param: str | None = None
    if message.startswith("extra_args: "):
        param = "extra_args"  # what a processor refuses, before a shape is tried
    elif asked.shape is not None:
        given = next(name for name in SHAPES if getattr(asked.shape, name) not in (None, False))
        param = f"structured_outputs.{given}"
        message = f"{param}: {message}"
    elif sampling.grammar:
        param = asked.tools.field
        message = f"{param}: {message}"
    elif sampling.allowed_token_ids is not None:
        param = "allowed_token_ids"
    elif sampling.bad_words_token_ids:
        param = "bad_words"
    return invalid(message, param)
