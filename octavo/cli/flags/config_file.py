"""Files of options: `--config FILE` has the names of flags, in YAML, TOML or JSON.

Each key becomes the words of its flag, so that a key and a flag have the same checks and errors.
The command line goes before the file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.cli.flags.dotted import joined

FLAG = "--config"
_MOST_BYTES = 1 << 20
# Settings without which a server would be open: an empty one, or one that YAML takes for a number
# or a truth, is a mistake.
PROTECTING = ("api_key", "api_key_file", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs")


def _read_yaml(text: str) -> Any:
    from octavo.cli.flags.flat_yaml import read

    return read(text)


def _read_toml(text: str) -> Any:
    import tomllib

    return tomllib.loads(text)


# Each imports what it needs: a command without a file starts sooner.
_READERS: Mapping[str, Callable[[str], Any]] = {
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
    ".toml": _read_toml,
    ".json": json.loads,
}


def without_file(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the file that the words name, if any, and the other words."""
    end = words.index("--") if "--" in words else len(words)
    found: list[str] = []
    left: list[str] = []
    index = 0
    while index < end:
        word = words[index]
        index += 1
        if word == FLAG:
            if index == end or words[index].startswith("--"):
                raise ValueError(f"{FLAG} needs the name of a file")
            found.append(words[index])
            index += 1
        elif word.startswith(f"{FLAG}="):
            found.append(word.partition("=")[2])
        else:
            left.append(word)
    if len(found) > 1:
        raise ValueError(f"{FLAG} is given {len(found)} times; write one file")
    return Path(found[0]) if found else None, [*left, *words[end:]]


def words_of(path: Path, actions: Mapping[str, argparse.Action]) -> dict[str, list[str]]:
    """Return the words of each flag that a file gives; `actions` are those of the known flags."""
    found: dict[str, list[str]] = {}
    for key, value in _settings(path).items():
        name, dot, rest = key.partition(".")
        flag = f"--{name.replace('_', '-')}"
        if flag == FLAG:
            raise ValueError(f"{path}: a file of options names no other; leave {key!r} out")
        action = actions.get(flag)
        if action is not None and action.dest in PROTECTING and not _is_text(value):
            raise ValueError(f"{path}: {key!r} needs a text; write it in quotes, or leave it out")
        if value is None:
            continue
        if dot:
            found.setdefault(flag, []).append(f"{flag}.{rest}={_text(value)}")
        elif flag in found:
            raise ValueError(f"{path}: {key!r} is there twice")
        else:
            try:
                found[flag] = list(words_for(flag, value, actions))
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
    return {flag: joined(words) for flag, words in found.items()}


def _settings(path: Path) -> dict[str, Any]:
    """Return the keys of a file and their values; raise ValueError for what is no such file."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: a file of options ends in {', '.join(_READERS)}")
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        found = reader(data.decode("utf-8"))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ValueError(
            f"{path} cannot be read: {why}; name another, or correct the name"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except RecursionError:
        raise ValueError(f"{path}: it is nested too deeply") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"{path}: it must have the names of flags as keys, as in `port: 8000`")
    return found


def words_for(flag: str, value: Any, actions: Mapping[str, argparse.Action]) -> Iterator[str]:
    """Yield the words by which a flag has this value on the command line."""
    action = actions.get(flag)
    if isinstance(value, bool) and (action is None or action.nargs == 0):
        opposite = f"--no-{flag.removeprefix('--')}"
        if value:
            yield flag
        elif opposite in actions:
            yield opposite
        elif action is None:  # an unknown flag is named
            yield flag
    elif isinstance(value, list) and isinstance(action, argparse._AppendAction):
        yield from (f"{flag}={_text(each)}" for each in value)  # which may begin with a dash
    elif isinstance(value, list) and action is not None and action.nargs == "+":
        texts = [_text(each) for each in value]
        if any(text.startswith("-") for text in texts):
            name = flag.removeprefix("--")
            raise ValueError(f"{name}: a value in a list begins with a dash; write the flag itself")
        yield flag
        yield from texts
    else:
        yield f"{flag}={_text(value)}"


def _is_text(value: Any) -> bool:
    """Return whether a value is a text that is not empty, or a list of them."""
    texts = value if isinstance(value, list) else [value]
    return bool(texts) and all(isinstance(each, str) and each for each in texts)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
