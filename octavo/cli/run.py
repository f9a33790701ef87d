"""The `run` command: answers a prompt or, without one at a terminal, holds a conversation.

The first word is the model, always; the others are the prompt, as in
`octavo run smollm2 "Why do cats purr?"`. What is piped in is the prompt, or follows it:
`cat notes.txt | octavo run smollm2 "Summarise this:"`.

`octavo chat` is the same command. In a conversation lines that begin with a slash are commands,
which /help lists: they set the system message, sampling parameters, a JSON schema or functions that
the model may call, send files, and save or load the conversation. Ctrl-C ends an answer, and the
conversation goes on; Ctrl-D leaves.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo import env
from octavo.cli.engine_options import add_engine_options, engine_options
from octavo.cli.parsing import Parser, UsageError
from octavo.cli.sampling_options import (
    add_sampling_options,
    sampling_fields,
    sampling_of,
)
from octavo.loader.source import is_name, similar_models, unknown_model
from octavo.observe.collection import no_collection
from octavo.options import DEFAULT_MODEL

if TYPE_CHECKING:
    from octavo.cli.chat.endpoint import Endpoint

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
        "--url",
        metavar="URL",
        help="ask a server with OpenAI's API, which has the model under this name; OCTAVO_API_KEY "
        "is its key (default: an engine of this process)",
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
    is_remote = arguments.url is not None
    model, words = model_and_prompt(arguments.words, arguments.model, is_remote=is_remote)
    prompt = _prompt(words, is_raw=arguments.raw)
    if prompt is None and arguments.raw:
        raise UsageError("--raw continues a prompt, and there is none; write one after it")
    if arguments.raw and (arguments.system or arguments.chat_template):
        raise UsageError("--raw uses no chat template; leave out --system and --chat-template")
    if not is_remote and prompt is not None:
        return _answer(arguments, model, prompt)
    return _converse(arguments, model, prompt)


def _answer(arguments: argparse.Namespace, model: str, prompt: str) -> int:
    template = _template(arguments)
    with no_collection():
        from octavo.api.llm import LLM
        from octavo.cli.chat.single import answer

        llm = LLM(model, **_options(arguments, model))
    try:
        answer(
            llm,
            prompt,
            lambda recommended: sampling_of(arguments, recommended),
            system=arguments.system,
            template=template,
            is_raw=arguments.raw,
            shows_stats=arguments.stats,
        )
    finally:
        llm.close()
    return 0


def _converse(arguments: argparse.Namespace, model: str, prompt: str | None) -> int:
    from octavo.cli.chat.conversation import Conversation
    from octavo.cli.chat.display import Display
    from octavo.cli.chat.loop import converse

    conversation = Conversation(
        _endpoint(arguments, model),
        model,
        Display(),
        sampling=sampling_fields(arguments),
        system=arguments.system or "",
        shows_stats=arguments.stats,
    )
    try:
        if prompt is None:
            return converse(conversation)
        conversation.ask(prompt)
        return 0
    finally:
        conversation.close()


def _endpoint(arguments: argparse.Namespace, model: str) -> Endpoint:
    """Return the server at --url, or an engine of this process."""
    if arguments.url is None:
        from octavo.api.async_llm import AsyncLLM
        from octavo.cli.chat.own_engine import OwnEngine
        from octavo.options.engine import read_arguments

        options = _options(arguments, model)
        if read_arguments(model, options).needs_processes:
            raise UsageError(
                "a conversation has one engine, in this process: leave out what starts several or "
                "places them elsewhere, or talk to a server that has them: octavo chat --url URL"
            )
        template = _template(arguments)
        return OwnEngine(AsyncLLM(model, **options), template)
    from octavo.cli.chat.remote import RemoteServer

    given = [*engine_options(arguments), *(("raw",) if arguments.raw else ())]
    given += ["chat_template"] if arguments.chat_template is not None else []
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise UsageError(f"{flag} is for an engine of this process; leave it out with --url")
    server = RemoteServer(arguments.url, env.api_keys().partition(",")[0])
    server.check_model(model)
    return server


def _options(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    """Return the options of the engine, which has one sequence unless the user asks for more."""
    logging.getLogger("octavo").debug("loading %s", model)
    options = engine_options(arguments)
    options.setdefault("max_num_seqs", 1)
    return options


def _template(arguments: argparse.Namespace) -> str | None:
    if arguments.chat_template is None:
        return None
    from octavo.cli.template import read_template

    return read_template(arguments.chat_template)


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


def model_and_prompt(
    words: Sequence[str], flag: str | None, *, is_remote: bool = False
) -> tuple[str, Sequence[str]]:
    """Return the model, which the first word names, and the words of the prompt.

    Raise UsageError, with the command to type, where it names none, or a flag names the model.
    """
    if flag is not None:
        raise UsageError(f"the model is the first word now: {_command(flag, *words)}")
    if not words:
        raise UsageError(f"name a model first, as in: {_command(DEFAULT_MODEL)}")
    if not is_remote and not is_name(words[0]):
        hint = f"; the model is the first word, as in: {_command(DEFAULT_MODEL, *words)}"
        raise UsageError(f"{unknown_model(words[0])}{'' if _means_model(words[0]) else hint}")
    return words[0], words[1:]


def _means_model(word: str) -> bool:
    """Return whether a word that names no model was meant to: it is a path, or like a name."""
    if any(character.isspace() for character in word):
        return False
    return "/" in word or word.endswith(".gguf") or bool(similar_models(word))


def _command(*words: str) -> str:
    """Return the command with these words; long ones are cut."""
    text = shlex.join(words)
    is_long = len(text) > _SHOWN_CHARACTERS or not text.isprintable()
    return f"octavo run {words[0]} …" if is_long and len(words) > 1 else f"octavo run {text}"
