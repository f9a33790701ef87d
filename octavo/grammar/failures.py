"""The failures of grammars, as their requests are answered."""

from __future__ import annotations

import logging
from typing import NamedTuple

from octavo.grammar.protocol import GrammarError

log = logging.getLogger(__name__)


class NoEngineError(Exception):
    """The lack of a grammar engine, which has been logged; the message is a request's."""


class Failure(NamedTuple):
    """The reason why a text in a grammar cannot go on."""

    message: str
    is_impossible: bool  # because of what the request asks for


def why_failed(error: BaseException) -> Failure:
    """Return the failure of a request; log what is no fault of its grammar."""
    if isinstance(error, NoEngineError):
        return Failure(str(error), is_impossible=False)
    if isinstance(error, GrammarError):
        return Failure(f"the text cannot keep its shape: {error}", is_impossible=True)
    log.error("a grammar failed", exc_info=error)
    if getattr(error, "is_of_model", False):
        message = f"the model's tokenizer cannot be used, so no text can have a shape: {error}"
        return Failure(message, is_impossible=False)
    return Failure(f"the grammar failed: {type(error).__name__}", is_impossible=False)
