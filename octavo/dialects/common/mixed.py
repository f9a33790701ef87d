"""Prompts of texts and token ids in one list, as llama.cpp has them."""

from __future__ import annotations

from typing import Any

from octavo.transport.errors import invalid

MAX_TEXTS = 1024  # of one prompt: each is split by a call of its own


def runs_in(given: list[Any], name: str) -> list[str | list[int]]:
    """Return the texts, and the token ids between them; raise ApiError for all else."""
    runs: list[str | list[int]] = []
    num_texts = 0
    for each in given:
        if isinstance(each, str):
            runs.append(each)
            num_texts += 1
        elif not isinstance(each, int):
            raise invalid(
                f"{name} mixes token ids with whole prompts; one prompt consists of texts and "
                "token ids alone",
                name,
            )
        elif runs and isinstance(last := runs[-1], list):
            last.append(each)
        else:
            runs.append([each])
    if num_texts > MAX_TEXTS:
        raise invalid(
            f"{name} has {num_texts} texts beside token ids; at most {MAX_TEXTS} are accepted: "
            "join those that follow one another",
            name,
        )
    return runs
