"""A strict parser for the JSON of checkpoints: UTF-8, no duplicate keys, finite numbers."""

import json
import math
from collections import Counter
from pathlib import Path

from octavo.loader.errors import CorruptFileError, quote


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
    if not isinstance(parsed, dict):
        raise CorruptFileError(f"{what} is not a JSON object", path=path)
    return parsed
