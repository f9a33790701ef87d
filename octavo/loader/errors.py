"""The errors of a model's files: each says which file, which tensor, and what to do."""

from pathlib import Path
from typing import Self

_LONGEST_QUOTE = 120


def quote(text: str) -> str:
    """`text` in quotes, cut to a readable length, with control characters escaped.

    Names in a checkpoint are chosen by whoever made it; quoted they cannot forge or flood a log.
    """
    if len(text) > _LONGEST_QUOTE:
        return f"{text[:_LONGEST_QUOTE]!r}… ({len(text):,} characters)"
    return repr(text)


class CheckpointError(Exception):
    """A model's name or files are no good; the message is for the person who gave them."""

    def __init__(
        self,
        problem: str,
        *,
        path: Path | None = None,
        tensor: str | None = None,
        advice: str | None = None,
    ) -> None:
        self.problem = problem
        self.path = path
        self.tensor = tensor
        self.advice = advice
        where = [str(path)] if path is not None else []
        if tensor is not None:
            where.append(f"tensor {quote(tensor)}")
        message = ": ".join([*where, problem])
        super().__init__(f"{message}; {advice}" if advice else message)

    def at(self, path: Path, tensor: str | None = None) -> Self:
        """The same error, now that the place is known."""
        return type(self)(self.problem, path=path, tensor=tensor, advice=self.advice)


class CorruptFileError(CheckpointError):
    """The file's bytes break its format: truncated, overlapping, contradictory."""


class UnsupportedFormatError(CheckpointError):
    """The file may be sound, but it is of a kind or version that Octavo does not read."""


class TensorMismatchError(CheckpointError):
    """A tensor is missing, unexpected, or not of the shape that the model needs."""


class SourceError(CheckpointError):
    """The model's name leads nowhere, or its files could not be fetched or kept."""


class DownloadError(SourceError):
    """The files could not be fetched: no network, no such package, refused."""
