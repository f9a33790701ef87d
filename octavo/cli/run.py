"""The `run` command: answers a prompt or, without one at a terminal, holds a conversation.

The first word is the model, always; the others are the prompt, as in
`octavo run smollm2 "Why do cats purr?"`. What is piped in is the prompt, or follows it:
`cat notes.txt | octavo run smollm2 "Summarise this:"`.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.cli.engine_options import add_engine_options, engine_options
from octavo.cli.parsing import Parser, UsageError
from octavo.cli.sampling_options import add_sampling_options, sampling_of
from octavo.loader.source import is_name, unknown_model
from octavo.options import DEFAULT_MODEL

if TYPE_CHECKING:
    from octavo.cli.chat.session import ChatSession

_SHOWN_CHARACTERS = 60  # of words that a message repeats
MAX_PROMPT_BYTES = 64 << 20  # of standard input; more than any model's context


def add_arguments(parser: Parser) -> None:
    """Add the words, the options of the answer, and the engine's flags."""
    # One argument, because argparse fills the first of two with nothing where options go before.
    parser.add_argument(
        "words",
        metavar="MODEL PROMPT",
        nargs="*",
        help="the model, and the prompt (default: standard input)",
    )
    parser.add_argument("-m", "--model", metavar="MODEL", help=argparse.SUPPRESS)
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
    arguments.model, words = model_and_prompt(arguments.words, arguments.model)
    prompt = _prompt(words, is_raw=arguments.raw)
    if prompt is None and arguments.raw:
        raise UsageError("--raw continues a prompt, and there is none; write one after it")
    if arguments.raw and (arguments.system or arguments.chat_template):
        raise UsageError("--raw uses no chat template; leave out --system and --chat-template")
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


def model_and_prompt(words: Sequence[str], flag: str | None) -> tuple[str, Sequence[str]]:
    """Return the model, which the first word names, and the words of the prompt.

    Raise UsageError, with the command to type, where it names none, or a flag names the model.
    """
    if flag is not None:
        raise UsageError(f"the model is the first word now: {_command(flag, *words)}")
    if not words:
        raise UsageError(f"name a model first, as in: {_command(DEFAULT_MODEL)}")
    if not is_name(words[0]):
        new = _command(DEFAULT_MODEL, *words)
        raise UsageError(f"{unknown_model(words[0])}; the model is the first word, as in: {new}")
    return words[0], words[1:]


def _command(*words: str) -> str:
    """Return the command with these words; long ones are cut."""
    text = shlex.join(words)
    is_long = len(text) > _SHOWN_CHARACTERS or not text.isprintable()
    return f"octavo run {words[0]} …" if is_long and len(words) > 1 else f"octavo run {text}"
