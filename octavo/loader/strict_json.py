"""A strict parser for the JSON of checkpoints: UTF-8, no key twice, finite numbers, valid text."""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from octavo.loader.errors import CheckpointError, CorruptFileError, quote

# The parsed form takes many times as much; the longest files are settings of large vocabularies.
MAX_FILE_BYTES = 64 << 20

# Half of a UTF-16 pair in an escape. UTF-8 cannot encode such a text, so it must go nowhere.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in one of the files beside the weights."""
    try:
        check_size(path.stat().st_size, path)
        return parse_object(path.read_bytes(), path, path.name)
    except OSError as error:
        raise unreadable(error, path) from error


def check_size(size: int, path: Path) -> None:
    """Raise an error if a file is too large to be read."""
    if size > MAX_FILE_BYTES:
        raise CorruptFileError(
            f"the file has {size:,} bytes, at most {MAX_FILE_BYTES:,} are read", path=path
        )


def unreadable(error: OSError, path: Path) -> CheckpointError:
    """Return the error for one of the files beside the weights that cannot be read."""
    return CheckpointError(
        f"cannot be read: {error.strerror or error}",
        path=path,
        advice="copy the whole model directory",
    )


def parse_object(text: bytes, path: Path, what: str) -> dict[str, object]:
    """Parse the object in `text`; any other content is an error that names `path` and `what`."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice = next(key for key, count in counts.items() if count > 1)
            raise CorruptFileError(f"{what} has the key {quote(twice)} twice", path=path)
        return found

    def finite(number: str) -> float:
        if not math.isfinite(float(number)):
            raise CorruptFileError(f"{what} holds {quote(number)}, not a finite number", path=path)
        return float(number)

    try:
        parsed = json.loads(
            text.decode(), object_pairs_hook=unique, parse_float=finite, parse_constant=finite
        )
    except RecursionError:
        raise CorruptFileError(f"{what} is nested too deeply", path=path) from None
    except ValueError as error:  # bad UTF-8, bad JSON, or an integer of thousands of digits
        raise CorruptFileError(
            f"{what} is not valid JSON: {error}", path=path, advice="download the file again"
        ) from None
    if _SURROGATE.search(text) and (place := _surrogate_in(parsed)) is not None:
        raise CorruptFileError(
            f"{what} holds half of a character (a surrogate) at {quote(place.lstrip('.'))}",
            path=path,
        )
    if not isinstance(parsed, dict):
        raise CorruptFileError(f"{what} is not a JSON object", path=path)
    return parsed


def _surrogate_in(value: object, place: str = "") -> str | None:
    """Return the place of a text that UTF-8 cannot encode, as in `.added_tokens[3]`."""
    inner: list[tuple[str, object]] = []
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return place
        case dict():
            inner = [(f"{place}.{key}", item) for key, item in value.items()]
            inner += [(f"{place}.{key}", key) for key in value]
        case list():
            inner = [(f"{place}[{index}]", item) for index, item in enumerate(value)]
    found = (_surrogate_in(item, at) for at, item in inner)
    return next((at for at in found if at is not None), None)
