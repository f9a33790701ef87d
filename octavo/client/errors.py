"""The errors of engines as callers see them, apart from all that causes them."""

from __future__ import annotations


class EngineDeadError(RuntimeError):
    """The engine was closed, or it ended by an error, which is chained or quoted."""


class EngineStartError(RuntimeError):
    """The engine could not be started; the message is the engine's own.

    `is_of_model` is True if the model's files are at fault, `is_of_settings` if its arguments are.
    """

    def __init__(
        self, message: str, *, is_of_model: bool = False, is_of_settings: bool = False
    ) -> None:
        super().__init__(message)
        self.is_of_model = is_of_model
        self.is_of_settings = is_of_settings
