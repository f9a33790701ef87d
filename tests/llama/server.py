"""The program that llama.cpp's tests start as llama-server.

    python -m tests.llama.server MODELS THEIRS FLAGS

THEIRS is empty, or the path of llama-server itself. Models of the hub become the stand-ins in the
directory MODELS. The rest of the command line is `octavo serve`'s own business, but for what the
tests need in another meaning: there is no hub to be offline of, templates are always Jinja's,
llama-server divides its context among its slots unless it is unified, where each sequence here may
have all of it, its batches are the steps of its prompts, it answers whatever model is named, and
pages of any origin may call it unless some are listed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from octavo.cli import main
from tests.llama.standins import STANDINS

# The models of a server that is started without one: those that the tests ask a router for.
ROUTED = (
    *("ggml-org/tinygemma3-GGUF:Q8_0", "ggml-org/test-model-stories260K:F32"),
    "ggml-org/test-model-stories260K-infill:F32",
)
_DROPPED = ("--offline", "--no-jinja")
_ORIGINS = "--cors-origins"
_NAMES = "--served-model-name"
_AS_THEIRS = ("--any-model-name",)


def words_of(models: Path, given: list[str]) -> list[str]:
    """Return the words for `octavo serve`."""
    words = [each for each in given if each not in _DROPPED]
    name = _hub_model(words)
    if name:
        words += ["--model", str(models / name)]
    is_router = "--model" not in words
    if _ORIGINS not in words:
        words += [_ORIGINS, "*"]
    batch = _take(words, "--batch-size")
    if batch is not None and not {"--embedding", "--reranking"} & {*words}:
        words += ["--max-num-batched-tokens", batch]
    context, slots = _take(words, "--ctx-size"), _take(words, "--parallel")
    if context is not None:
        divided = 1 if "--kv-unified" in words else int(slots or 1)
        words += ["--ctx-size", str(int(context) // divided)]
    if slots is not None:
        words += ["--parallel", slots]
    if is_router:
        return [*(str(models / standin(each)) for each in ROUTED), *words, _NAMES, *ROUTED]
    return [*words, *_AS_THEIRS]


def standin(name: str) -> str:
    """Return the file in the place of a model of the hub, with or without its quantisation."""
    return STANDINS.get(name) or STANDINS[name.partition(":")[0]]


def _hub_model(words: list[str]) -> str:
    """Take the model of the hub from a command line; return its stand-in, empty if there is none.

    Of a model with several files, one stand-in may serve for each.
    """
    repository, file = _take(words, "--hf-repo"), _take(words, "--hf-file")
    if repository is None:
        return ""
    whole = repository if file is None else f"{repository}/{file}"
    return STANDINS.get(whole) or STANDINS.get(repository, whole)


def _take(words: list[str], flag: str) -> str | None:
    """Remove a flag with its value; return the value."""
    if flag not in words:
        return None
    at = words.index(flag)
    value = words[at + 1]
    del words[at : at + 2]
    return value


def run_theirs(program: str, models: Path, given: list[str]) -> None:
    """Run llama-server itself in the place of this process, over the same models."""
    words = list(given)
    name = _hub_model(words)
    model = ["--model", str(models / name)] if name else []
    os.execv(program, [program, *words, *model])


if __name__ == "__main__":
    models, theirs, given = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if theirs:
        run_theirs(theirs, models, given)
    sys.exit(main(["serve", *words_of(models, given)]))
