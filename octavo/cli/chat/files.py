"""The files of a conversation: read within bounds, and saved without losing another file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from octavo.core.sampling_params import RequestError

MAX_TEXT_BYTES = 1 << 20  # of a text, a schema or a file of tools
MAX_SAVED_BYTES = 64 << 20
_ROLES = ("user", "assistant", "tool")
_FORM = "octavo_conversation"


def read_text(name: str, limit: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a regular file; raise RequestError for what is none."""
    path = Path(name).expanduser()
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise RequestError(f"{name} is no regular file")
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RequestError(f"{name} cannot be read: {why.lower()}") from None
    if len(data) > limit:
        raise RequestError(f"{name} has more than {limit:,} bytes; shorten it")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8 text (at byte {error.start:,})") from None


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; a pipe without a writer would be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_object(name: str, limit: int = MAX_TEXT_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file."""
    try:
        found = json.loads(read_text(name, limit))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise RequestError(f"{name} has no JSON object")
    return found


def as_saved(model: str, system: str, messages: list[dict[str, Any]]) -> bytes:
    """Return the content of a file that `loaded` reads."""
    content = {_FORM: 1, "model": model, "system": system, "messages": messages}
    text = json.dumps(content, indent=1, ensure_ascii=False)
    # Half of a pair, which UTF-8 has no bytes for, becomes JSON's escape.
    return text.encode(errors="backslashreplace") + b"\n"


def loaded(name: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the system message and the messages of a saved conversation, all of it checked."""
    found = read_object(name, MAX_SAVED_BYTES)
    messages, system = found.get("messages"), found.get("system", "")
    if found.get(_FORM) != 1 or not isinstance(messages, list) or not isinstance(system, str):
        raise RequestError(f"{name} is no conversation that /save has written")
    for index, each in enumerate(messages):
        if not isinstance(each, dict) or each.get("role") not in _ROLES:
            raise RequestError(f"{name}: messages[{index}].role must be {', '.join(_ROLES)}")
        if not isinstance(each.get("content"), str):
            raise RequestError(f"{name}: messages[{index}].content must be a text")
    return system, messages


def save(name: str, content: bytes, *, may_replace: bool) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    path = Path(name).expanduser()
    try:
        descriptor, made = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            if may_replace:
                os.replace(made, path)
            else:
                _rename_new(made, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(made)
    except FileExistsError:
        raise RequestError(f"{name} is there already; name another file") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RequestError(f"{name} cannot be written: {why.lower()}") from None


def _rename_new(made: str, path: Path) -> None:
    """Give a file its name; raise FileExistsError if there is one of that name."""
    try:
        os.link(made, path)  # which fails if there is one, unlike a rename
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # A file system without hard links: the name is taken first.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.replace(made, path)
