"""The `run` command: answers a prompt or, without one at a terminal, holds a conversation.

The first word is the model, as in `octavo run smollm2 "Why do cats purr?"`. If it names no
model, it begins the prompt, and the default model answers. What is piped in follows the prompt.
Ctrl-C ends an answer; a second one ends the program.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.cli.engine_options import add_engine_options, engine_options
from octavo.cli.parsing import Parser, UsageError
from octavo.cli.sampling_options import add_sampling_options, sampling_of
from octavo.loader.errors import quote
from octavo.loader.source import known_models, names_model, unknown_model
from octavo.nearest import nearest
from octavo.options import DEFAULT_MODEL

if TYPE_CHECKING:
    from octavo.cli.chat.session import ChatSession

_LIKENESS = 0.85  # of a word to the name of a model that it may mean
_TAGGED = re.compile(r"\w[\w.-]*:\w.*")  # as Ollama names models
# Weights in a file, which may be missing; and names that are a family and a version: llama3.2.
_FILE = re.compile(r".*\.(gguf|safetensors)", re.IGNORECASE)
_VERSION = r"[-_.]?v?\d[\w.-]*"
MAX_PROMPT_BYTES = 64 << 20  # of standard input; more than any model's context


def add_arguments(parser: Parser) -> None:
    """Add the words, the options of the answer, and the engine's flags."""
    parser.add_argument(
        "words",
        metavar="MODEL PROMPT",
        nargs="*",
        help=f"the model (default: {DEFAULT_MODEL}), and the prompt",
    )
    parser.add_argument(
        "-m", "--model", metavar="MODEL", help="the model; then all words are the prompt"
    )
    parser.add_argument(
        "--raw", action="store_true", help="continue the prompt as it is, without a chat template"
    )
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--chat-template",
        metavar="FILE",
        help="a Jinja template instead of the model's: a file, or the template itself",
    )
    parser.add_argument(
        "--stats", action="store_true", help="print tokens and speed after each answer"
    )
    add_sampling_options(parser)
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer one prompt, or hold a conversation."""
    words: Sequence[str] = arguments.words
    if arguments.model is None:
        arguments.model, words = model_and_prompt(words)
    prompt = _prompt(words, is_raw=arguments.raw)
    if prompt is None and arguments.raw:
        raise UsageError("--raw continues a prompt, and there is none; write one after it")
    if arguments.raw and (arguments.system or arguments.chat_template):
        raise UsageError("--raw uses no chat template; leave out --system and --chat-template")
    if arguments.model is None:
        arguments.model = DEFAULT_MODEL
        sys.stderr.write(
            f"{DEFAULT_MODEL} answers; to ask another model, name it first: octavo run MODEL …\n"
        )
    conversation = _open(arguments)
    try:
        if prompt is None:
            from octavo.cli.chat.session import chat

            return chat(conversation)
        conversation.answer(prompt)
        return 0
    finally:
        conversation.close()


def _open(arguments: argparse.Namespace) -> ChatSession:
    from octavo.api.async_llm import AsyncLLM
    from octavo.cli.chat.session import ChatSession

    if arguments.chat_template is not None:
        from octavo.cli.template import read_template

        arguments.chat_template = read_template(arguments.chat_template)
    logging.getLogger("octavo").debug("loading %s", arguments.model)
    options = engine_options(arguments)
    options.setdefault("max_num_seqs", 1)
    llm = AsyncLLM(arguments.model, **options)
    return ChatSession(
        llm,
        lambda recommended: sampling_of(arguments, recommended),
        system=arguments.system,
        template=arguments.chat_template,
        is_raw=arguments.raw,
        shows_speed=arguments.stats,
    )


def _prompt(given: Sequence[str], *, is_raw: bool) -> str | None:
    """Return the prompt from words and standard input; None at a terminal without words."""
    words = " ".join(given)
    if sys.stdin is None or sys.stdin.isatty():
        return words or None
    data = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    if len(data) > MAX_PROMPT_BYTES:
        raise UsageError(f"standard input has more than {MAX_PROMPT_BYTES:,} bytes; shorten it")
    try:
        piped = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is not UTF-8 text (at byte {error.start:,}); convert it first"
        ) from None
    if not is_raw:
        piped = piped.strip("\n")
    if words and piped.strip():
        return f"{words}\n\n{piped}"
    if not (words or piped):
        raise UsageError("there is no prompt: write one after the model, or pipe one in")
    return words or piped


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
