"""The chat template that the command line names or contains."""

from __future__ import annotations

from pathlib import Path

from octavo.core.config import ConfigError
from octavo.text.chat.messages import ChatTemplateError
from octavo.text.chat.named_templates import NAMED
from octavo.text.chat.template import ChatTemplate


def read_template(given: str) -> str:
    """Return a template's text, given the text, its file, or a name that llama-server knows.

    The template is compiled, so that a mistake is found before the model is loaded.
    """
    text = NAMED.get(given, given)
    if text is given and not any(mark in given for mark in ("{{", "{%")):
        try:
            text = Path(given).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = "it is not UTF-8"
            if isinstance(error, OSError):
                why = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"chat_template={given!r} cannot be read: {why}; give a file with a Jinja "
                f"template, one of {', '.join(NAMED)}, or leave it out for the model's own"
            ) from error
    try:
        ChatTemplate(text)
    except ChatTemplateError as error:
        raise ConfigError(f"chat_template={given[:200]!r}: {error}") from error
    return text
