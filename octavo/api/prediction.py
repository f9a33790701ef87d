"""A request's prediction as the core takes it: its token ids have been checked."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from octavo.api.outputs import RequestError
from octavo.api.prompts import check_ids
from octavo.api.text_model import TextModel
from octavo.core.sampling_params import TOO_LONG

_REACHED = 4  # tokens of a prediction for each token of the answer
_LEAST_FOLLOWED = 4096  # tokens that even a short answer may follow


def predicted_tokens(model: TextModel, prediction: str | tuple[int, ...]) -> array[int]:
    """Return the token ids of a prediction."""
    ids: Sequence[int] = prediction if isinstance(prediction, tuple) else ()
    if isinstance(prediction, str):
        ids = model.tokenizer.encode(prediction, add_special_tokens=False)
    return check_ids(list(ids), model.facts.vocabulary, "prediction") if ids else array("i")


def followed_part(model: TextModel, prediction: array[int], max_tokens: int) -> array[int]:
    """Return what an answer may reach of a prediction; refuse more than the model's context.

    The answer may leave out some of the text, so it may reach a few times its own tokens.
    """
    num_tokens, most = len(prediction), model.facts.max_model_len
    if num_tokens > most:
        raise RequestError(
            f"prediction has {num_tokens} tokens, and the model's context has {most}: send the "
            "part that the answer is likely to repeat",
            param="prediction",
            code=TOO_LONG,
        )
    return prediction[: max(_LEAST_FOLLOWED, _REACHED * max_tokens)]
