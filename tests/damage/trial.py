"""A trial of a damaged model: it is loaded as a server loads it, and generates if it loads."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from octavo import LLM, RequestError, SamplingParams
from octavo.cli.trouble import explain, is_of_model
from octavo.loader.errors import SourceError
from octavo.text.chat.messages import ChatTemplateError
from tests.damage.mutants import Mutant

SHORT = SamplingParams(max_tokens=2, min_tokens=2, temperature=0.0)
BUG = "report it"


def trial(model: Path, mutant: Mutant) -> str | None:
    """Apply a mutant to a copy of the model's directory; return what is wrong with the outcome."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "damaged"
        shutil.copytree(model if model.is_dir() else model.parent, copy)
        mutant.apply(copy)
        error = failure(copy if model.is_dir() else copy / model.name)
        return None if error is None else complaint(error, copy, mutant)


def failure(path: Path) -> BaseException | None:
    """Load a model, generate and chat; return the error with which it was refused."""
    try:
        llm = LLM(path, num_threads=1, kv_cache_memory_bytes=1 << 20, max_num_seqs=2, block_size=16)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of a library is no Exception
        return error
    with llm:
        try:
            llm.generate({"prompt_token_ids": [1, 2, 3]}, SHORT)
            llm.generate("a", SHORT)
            llm.chat([{"role": "user", "content": "a"}], SHORT)
        except (RequestError, ChatTemplateError):
            pass  # of one request; the model is served
    return None


def complaint(error: BaseException, directory: Path, mutant: Mutant) -> str | None:
    """Return what is wrong with the message about a damaged model; None if it is as it must be."""
    if not isinstance(error, Exception):
        return f"{type(error).__name__}: {error}"
    text = explain(error)
    if BUG in text:
        return text
    if isinstance(error, SourceError) and not list(directory.glob("*model*.*[sf]")):
        return None  # without weights there is no model
    if not is_of_model(error):
        return f"exit code 1: {text}"
    if not text.isprintable():
        return f"more than a line: {text!r}"
    if len(text) > 1500:
        return f"{len(text)} characters: {text[:300]}"
    files = {path.name for path in directory.iterdir()} | {mutant.file}
    if f"{directory}/" not in text and not any(name in text for name in files):
        return f"names no file: {text}"
    # A place in a file of one line is a column, with the field where it can be found.
    places = (*filter(None, mutant.fields), "tensor", " column ")
    if mutant.fields and not any(place in text for place in places):
        return f"names neither the field nor a tensor: {text}"
    return None
