"""The tasks that a model serves, and the errors about those that it does not."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.core.sampling_params import RequestError
from octavo.wire.facts import EngineFacts

NOT_SERVED = "task_not_served"  # the code of errors about what a model cannot do


def not_served(facts: EngineFacts, task: str) -> RequestError:
    """Return the error for a task that is not one of the model's."""
    served = ", ".join(facts.pooling.tasks)
    return RequestError(
        f"this model ({facts.name}, {facts.architecture}) does not serve {task!r}; it serves: "
        f"{served}",
        param="model",
        code=NOT_SERVED,
    )


def check_generates(facts: EngineFacts, places: Mapping[str, str] | None = None) -> None:
    """Refuse to generate with a model that does not; `places` says where a task is served."""
    tasks = facts.pooling.tasks
    if "generate" in tasks:
        return
    kind = "a classifier" if "classify" in tasks else "an embedding model"
    kind = "a reranker" if "score" in tasks else kind
    served = [f"{task} ({places[task]})" if places else task for task in tasks]
    raise RequestError(
        f"{facts.name} is {kind} and generates no text; it serves: {', '.join(served)}",
        param="model",
        code=NOT_SERVED,
    )


def is_cross_encoder(facts: EngineFacts) -> bool:
    """Return whether the model reads both texts of a pair at once and gives a score.

    Otherwise a score is the cosine of the angle between two embeddings.
    """
    return "score" in facts.pooling.tasks
