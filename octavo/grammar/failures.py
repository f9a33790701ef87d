"""What a request is answered whose grammar has failed."""

from __future__ import annotations

import logging

from octavo.grammar.protocol import GrammarError

log = logging.getLogger(__name__)


class NoEngineError(Exception):
    """The lack of a grammar engine, which has been logged; the message is a request's."""


def why_failed(error: BaseException) -> str:
    """Return the message for a request; log what is no fault of its grammar."""
    if isinstance(error, NoEngineError):
        return str(error)
    if isinstance(error, GrammarError):
        return f"the grammar cannot be used: {error}"
    log.error("a grammar failed", exc_info=error)
    if getattr(error, "is_of_model", False):
        return f"the model's tokenizer cannot be used, so no text can have a shape: {error}"
    return f"the grammar failed: {type(error).__name__}"
