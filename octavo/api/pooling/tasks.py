"""The tasks of models beside generating: what the engine computes, and what is made of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, cast, get_args

from msgspec import Struct

from octavo.api.outputs import RequestError, RequestOutput
from octavo.api.pooling.params import PoolingParams
from octavo.api.pooling.served import not_served
from octavo.api.pooling.vectors import activated, cosine, of_length_one, product
from octavo.core.pooling import Pooling
from octavo.core.sampling_params import RequestOutputKind, SamplingParams
from octavo.wire.facts import EngineFacts

# What can be made of a prompt: its vector for comparing texts; its classes; both for each of its
# tokens; and the pooled hidden state as it is.
Task = Literal["embed", "classify", "token_embed", "token_classify", "plain"]
TASKS: tuple[Task, ...] = get_args(Task)
DEFAULTS = PoolingParams()
_SERVES = {  # the model's own name of what a task needs
    "embed": "embed",
    "token_embed": "embed",
    "classify": "classify",
    "token_classify": "classify",
}


class Wanted(Struct, frozen=True):
    """One request for a vector: what the engine computes, and what is made of its result."""

    pooling: Pooling
    width: int | None = None  # of each vector of the result; None: the engine's
    normalizes: bool = False
    activation: str = ""
    logit_mean: float = 0.0  # subtracted from classes' logits
    logit_sigma: float = 1.0  # by which they are divided then
    only_token: int | None = None  # the token id whose vectors are kept; None: all
    similarity: Callable[[Sequence[float], Sequence[float]], float] = cosine

    @property
    def sampling(self) -> SamplingParams:
        """The parameters of the engine's request, which generates nothing."""
        return SamplingParams(
            max_tokens=0,
            temperature=0.0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            pooling=self.pooling,
        )

    def vector(self, output: RequestOutput) -> list[float]:
        """Return the one vector of a prompt."""
        return self.finished(hidden_state(output))

    @property
    def is_each_token(self) -> bool:
        """True if each token of a prompt has a vector of its own."""
        return self.pooling.kind == "all"

    def rows(self, output: RequestOutput) -> Iterator[list[float]]:
        """Yield the vectors of a prompt's tokens, or its one vector as the only row."""
        values, ids = hidden_state(output), output.prompt_ids
        num_rows = len(ids) if self.is_each_token else 1
        width = len(values) // num_rows
        for row in range(num_rows):
            if self.only_token is None or ids[row] == self.only_token:
                yield self.finished(values[row * width : (row + 1) * width])

    def finished(self, values: Sequence[float]) -> list[float]:
        """Cut a vector of the engine, and normalise it or make probabilities of it."""
        kept = values[: self.width]
        if self.normalizes:
            return of_length_one(kept)
        if self.logit_mean or self.logit_sigma != 1.0:
            kept = [(value - self.logit_mean) / self.logit_sigma for value in kept]
        return activated(kept, self.activation)


def wanted(facts: EngineFacts, task: Task, params: PoolingParams = DEFAULTS) -> Wanted:
    """Return what a task needs of a model; raise RequestError if the model cannot do it."""
    if task not in TASKS:
        raise RequestError(f"the task {task!r} must be one of {', '.join(TASKS)}", param="task")
    model = facts.pooling
    needs = _SERVES.get(task)
    if needs is not None and needs not in model.tasks:
        raise not_served(facts, task)
    default = model.classify_kind if needs == "classify" else model.kind
    kind = "all" if task.startswith("token_") else params.pooling or default
    if needs == "classify":
        if params.dimensions is not None:
            raise RequestError(
                "dimensions are those of an embedding, and classes have none; leave it out",
                param="dimensions",
            )
        activates = model.activates if params.use_activation is None else params.use_activation
        return Wanted(
            Pooling(kind, "classify"),
            activation=model.squash if activates else "",
            logit_mean=model.logit_mean,
            logit_sigma=model.logit_sigma,
            only_token=model.step_tag_id if kind == "all" else None,
        )
    if task == "plain":
        return Wanted(Pooling(kind), params.dimensions, bool(params.use_activation))
    width = model.dimensions if params.dimensions is None else params.dimensions
    if params.dimensions is not None and params.dimensions > model.width:
        raise RequestError(
            f"dimensions={params.dimensions} are more than the model's vectors have: {model.width}",
            param="dimensions",
        )
    normalizes = model.normalize if params.use_activation is None else params.use_activation
    pooling = Pooling(kind, model.embed_head)
    similarity = product if model.similarity == "dot" else cosine
    return Wanted(pooling, width, normalizes, similarity=similarity)


def default_task(facts: EngineFacts, usual: Task) -> Task:
    """Return the task of a request that names none: the server's, or else the usual one."""
    found = facts.pooling.default_task
    return cast("Task", found) if found else usual


def hidden_state(output: RequestOutput) -> array[float]:
    """Return the engine's values, one vector after the other."""
    is_aborted = any(one.finish_reason == "abort" for one in output.outputs)
    if output.hidden_state is None or is_aborted:  # some vectors of tokens may be there
        raise RequestError(
            f"request {output.request_id} was aborted before the whole of its prompt was computed"
        )
    return output.hidden_state
