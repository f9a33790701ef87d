"""The error of a request's parameters."""

from __future__ import annotations

TOO_LONG = "context_length_exceeded"  # the code of an error


class RequestError(ValueError):
    """A request that cannot be served as it is; the message says why and what to change.

    `param` names the parameter at fault and `code` the kind of error, where the check knows them;
    `room` has the tokens of a prompt that is too long and those of the context.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        room: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.room = room
