"""The prompt and the answer as the model has them: their texts with all marks, and their tokens."""

from __future__ import annotations

from octavo.api.outputs import CompletionOutput
from octavo.dialects.responses.schema import RawMessage
from octavo.workers.jobs import PreparedPrompt


class RawMessages:
    """The texts of one response; the answer grows as its outputs come."""

    def __init__(self, prompt: PreparedPrompt) -> None:
        self._prompt = prompt
        self._texts: list[str] = []
        self._tokens: list[int] = []

    def add(self, one: CompletionOutput) -> None:
        """Add what is new of the answer."""
        self._texts.append(one.text)
        self._tokens += one.token_ids

    @property
    def input(self) -> list[RawMessage]:
        """The prompt, as a list of one."""
        return [RawMessage(message=self._prompt.text, tokens=self._prompt.token_ids)]

    @property
    def output(self) -> list[RawMessage]:
        """The answer so far, as a list of one."""
        return [RawMessage(message="".join(self._texts), tokens=self._tokens)]
