"""Errors of a model's files, which name the file and the tensor, and say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

_LONGEST_QUOTE = 120


def quote(text: str) -> str:
    """Quote `text`, cut to a readable length, with control characters escaped.

    The names in a checkpoint are untrusted; when quoted they cannot forge or flood a log.
    """
    if len(text) > _LONGEST_QUOTE:
        return f"{text[:_LONGEST_QUOTE]!r}… ({len(text):,} characters)"
    return repr(text)


class CheckpointError(Exception):
    """A model's name or files cannot be used; the message is for the user.

    `is_of_model` is True if the files themselves are damaged, incomplete or of an unsupported kind.
    """

    is_of_model = True

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
        """Return the same error with its place."""
        return type(self)(self.problem, path=path, tensor=tensor, advice=self.advice)


@contextmanager
def errors_at(path: Path) -> Iterator[None]:
    """Add the path to errors that have none."""
    try:
        yield
    except CheckpointError as error:
        raise error if error.path is not None else error.at(path) from None


class CorruptFileError(CheckpointError):
    """A file that breaks its format: truncated, overlapping, contradictory."""


class UnsupportedFormatError(CheckpointError):
    """A file of a kind or version that Octavo does not read."""


class TensorMismatchError(CheckpointError):
    """A tensor that is missing, unexpected, or of the wrong shape."""


class SourceError(CheckpointError):
    """A name without a model, or files that could not be fetched or stored."""

    is_of_model = False


class DownloadError(SourceError):
    """A download that failed: no network, no such package, no permission."""
