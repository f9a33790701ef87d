"""The first word of `octavo run`: a model's name, or the beginning of the prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo.cli.parsing import UsageError
from octavo.loader.errors import quote
from octavo.loader.source import known_models, names_model, unknown_model
from octavo.nearest import nearest
from octavo.options import DEFAULT_MODEL

_LIKENESS = 0.85  # of a word to the name of a model that it may mean
_TAGGED = re.compile(r"\w[\w.-]*:\w.*")  # as Ollama names models
# Weights in a file, which may be missing; and names that are a family and a version: llama3.2.
_FILE = re.compile(r".*\.(gguf|safetensors)", re.IGNORECASE)
_VERSION = r"[-_.]?v?\d[\w.-]*"


def model_and_prompt(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the model that the first word names, if it names one, and the words of the prompt.

    Raise UsageError for a first word that is no model and looks like the name of one.
    """
    if not words:
        return None, words
    first = words[0]
    if names_model(first):
        return first, words[1:]
    if _looks_like_model(first):
        raise UsageError(
            f"{unknown_model(first)}; if {quote(first)} begins the prompt, put the model before "
            f"it: octavo run {DEFAULT_MODEL} {first} …"
        )
    return None, words


def _looks_like_model(word: str) -> bool:
    if not word or word != "".join(word.split()):
        return False  # a prompt in quotes
    if "/" in word or _TAGGED.fullmatch(word) or _FILE.fullmatch(word):
        return True
    if re.fullmatch(f"({'|'.join(_families())}){_VERSION}", word, re.IGNORECASE):
        return True
    known = known_models()
    ends = (name.rpartition("/")[2] for name in known)
    folded = {name.casefold() for name in (*known, *ends)}
    return bool(nearest(word.casefold(), folded, likeness=_LIKENESS))


def _families() -> set[str]:
    """Return the names of the families of models, without their versions: llama, qwen."""
    from octavo.models.registry import FAMILIES

    names = (re.match(r"[A-Z]+[a-z]*", name) for name in FAMILIES)
    return {"smollm", *(found[0].lower() for found in names if found)}
