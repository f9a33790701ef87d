"""One tokenizer for all simulated front ends, since loading it takes longer than a world."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo.api import text_model
from octavo.text.tokenizer_files import tokenizer_from_directory
from tests.api.tiny import make_model


@contextmanager
def one_tokenizer(directory: Path) -> Iterator[None]:
    """Replace every model's tokenizer by that of a tiny model."""
    made = tokenizer_from_directory(make_model(directory))

    def load(source: Any) -> Any:
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_model, "load_tokenizer", load)
        yield
