"""The commands of a conversation: lines that begin with a slash."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from octavo.cli.chat.conversation import Conversation
from octavo.cli.chat.files import as_saved, loaded, read_object, read_text, save
from octavo.cli.chat.tools import ToolFile
from octavo.cli.sampling_options import SETTINGS
from octavo.core.sampling_params import RequestError
from octavo.dialects.common.schema.sampling import CommonRequest
from octavo.nearest import nearest, nearest_or_all
from octavo.serving.schema.decode import decode
from octavo.transport.errors import ApiError

MAX_ATTACHED_CHARACTERS = 4 << 20  # of all files for one message


class Command(NamedTuple):
    """One command; `run` returns the line to show."""

    usage: str
    summary: str
    run: Callable[[Commands, str], str]


class Commands:
    """The commands, with what only they change: attached files, and files that are ours."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._attached: list[str] = []
        self._own_files: set[Path] = set()  # saved or loaded here, so that saving may replace them

    def execute(self, line: str) -> str:
        """Execute a command and return the line to show; EOFError ends the conversation."""
        name, _, rest = line.partition(" ")
        command = COMMANDS.get(_ALSO.get(name, name))
        if command is None:
            near = nearest(name, COMMANDS)
            hint = f"did you mean {near[0]}?" if near else "/help lists them"
            raise RequestError(
                f'there is no command {name[:40]}; {hint} (a text between """ is never a command)'
            )
        return command.run(self, rest.strip())

    def with_files(self, text: str) -> str:
        """Return a message with the files that wait for it; they go with no other."""
        parts = [text, *self._attached]
        self._attached.clear()
        return "\n\n".join(parts)

    def help(self, _: str) -> str:
        width = max(len(each.usage) for each in COMMANDS.values())
        rows = [f"{each.usage:{width}}  {each.summary}" for each in COMMANDS.values()]
        return "\n".join([*rows, *_KEYS])

    def system(self, text: str) -> str:
        if not text:
            return self._conversation.system or "there is no system message"
        self._conversation.system = "" if text == "off" else text
        return "the system message is used from the next answer on"

    def clear(self, _: str) -> str:
        self._conversation.forget()
        self._attached.clear()
        return "a new conversation begins"

    def retry(self, _: str) -> str:
        self._conversation.retry()
        return ""

    def set(self, text: str) -> str:
        sampling = self._conversation.sampling
        name, _, value = text.partition(" ")
        name, value = name.replace("-", "_"), value.strip()
        if not name:
            return json.dumps(sampling, ensure_ascii=False) if sampling else "nothing is set"
        if name not in SETTINGS:
            raise RequestError(
                f"there is no setting {name[:40]!r}; {nearest_or_all(name, SETTINGS)}"
            )
        if not value:
            return f"{name} is {sampling.get(name, 'not set')}"
        if value == "default":
            sampling.pop(name, None)
            return f"{name} is the model's own again"
        try:
            number = SETTINGS[name](value)
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError
        except ValueError:
            kind = SETTINGS[name].__name__.replace("int", "a whole number")
            kind = kind.replace("float", "a number")
            raise RequestError(f"{name} is {kind}, not {value[:40]!r}") from None
        try:
            decode(json.dumps({name: number}).encode(), CommonRequest)
        except ApiError as error:
            raise RequestError(error.named_message) from None
        sampling[name] = number
        return f"{name} is {number} from the next answer on"

    def save(self, name: str) -> str:
        path = _place(name, "/save FILE")
        conversation = self._conversation
        content = as_saved(conversation.model, conversation.system, conversation.messages)
        save(name, content, may_replace=path in self._own_files)
        self._own_files.add(path)
        return f"saved {len(conversation.messages)} messages in {name}"

    def load(self, name: str) -> str:
        path = _place(name, "/load FILE")
        conversation = self._conversation
        system, messages = loaded(name)
        conversation.forget()
        conversation.system, conversation.messages[:] = system, messages
        self._own_files.add(path)
        return f"loaded {len(messages)} messages from {name}"

    def stats(self, text: str) -> str:
        if text not in ("", "on", "off"):
            raise RequestError("write /stats, /stats on or /stats off")
        if text:
            self._conversation.shows_stats = text == "on"
            return f"a line behind each answer: {text}"
        return self._conversation.stats

    def file(self, name: str) -> str:
        path = _place(name, "/file PATH")
        text = read_text(name)
        if sum(map(len, self._attached)) + len(text) > MAX_ATTACHED_CHARACTERS:
            raise RequestError(
                f"the files of one message have at most {MAX_ATTACHED_CHARACTERS:,} characters"
            )
        mark = "```"
        while mark in text:
            mark += "`"
        end = "" if text.endswith("\n") else "\n"
        self._attached.append(f"{path.name}:\n{mark}\n{text}{end}{mark}")
        return f"{name} ({len(text):,} characters) goes with the next message"

    def schema(self, name: str) -> str:
        if name == "off":
            self._conversation.schema = None
            return "answers have no schema"
        _place(name, "/schema PATH, or /schema off")
        self._conversation.schema = read_object(name)
        return f"answers are JSON of the schema in {name}"

    def tools(self, name: str) -> str:
        if name == "off":
            self._conversation.tools = None
            return "no function is called"
        _place(name, "/tools FILE.py, or /tools off")
        self._conversation.tools = made = ToolFile(name)
        return f"the model may call {', '.join(made.names)}"

    def bye(self, _: str) -> str:
        raise EOFError


def _place(name: str, usage: str) -> Path:
    """Return the whole path of a file that a command names."""
    if not name:
        raise RequestError(f"write {usage}")
    try:
        return Path(name).expanduser().absolute()
    except (RuntimeError, ValueError) as error:
        raise RequestError(f"{name[:100]}: {error}") from None


COMMANDS = {
    "/help": Command("/help", "show this text", Commands.help),
    "/system": Command("/system TEXT", "set the system message; off: none", Commands.system),
    "/clear": Command("/clear", "forget the conversation", Commands.clear),
    "/retry": Command("/retry", "answer the last message again", Commands.retry),
    "/set": Command(
        "/set NAME VALUE", "set a sampling parameter, as in /set temperature 0.3", Commands.set
    ),
    "/save": Command("/save FILE", "save the conversation", Commands.save),
    "/load": Command("/load FILE", "continue a saved conversation", Commands.load),
    "/stats": Command(
        "/stats [on|off]", "show tokens and speed of the last answer, or of each", Commands.stats
    ),
    "/file": Command("/file PATH", "send a text file with the next message", Commands.file),
    "/schema": Command("/schema PATH", "answer in JSON of a schema; off: in text", Commands.schema),
    "/tools": Command(
        "/tools FILE.py", "let the model call the functions of a file; off: none", Commands.tools
    ),
    "/bye": Command("/bye", "leave", Commands.bye),
}
_ALSO = {"/exit": "/bye", "/quit": "/bye", "/?": "/help"}  # of other programs
_KEYS = (
    '""" begins and ends a text of several lines; so does a backslash at the end of a line.',
    "Ctrl-C ends an answer, and the conversation goes on; Ctrl-D leaves.",
)
