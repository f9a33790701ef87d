"""Measures what each way to draft gains on prompts of the user's own."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo.api.llm import LLM
from octavo.core.config import ConfigError
from octavo.core.sampling_params import SamplingParams
from octavo.options.speculation import AUTO, DRAFT_MODEL, SpeculativeConfig

MOST_PROMPTS = 4096
# The settings of each way to draft. Predictions need none; "off" is what the others are compared
# with.
WAYS: dict[str, dict[str, Any] | SpeculativeConfig | None] = {
    "off": {"method": "off"},
    "ngram": {"method": "ngram"},
    "suffix": {"method": "suffix"},
    "prediction": None,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt: a conversation, or a text that is continued; and what the answer may follow."""

    messages: list[dict[str, Any]] | None
    prompt: str
    prediction: str


@dataclass(slots=True)
class Gain:
    """The measurement of one way to draft."""

    way: str
    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0  # of sequences that decode
    drafts: int = 0
    accepted: int = 0
    ratio: float = 1.0  # how many times as fast as without drafts


def read_prompts(path: Path) -> list[Asked]:
    """Read a file of prompts: each line is a text, or an object with `prompt` or `messages`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(f"the prompts cannot be read: {path}: {why}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the prompts cannot be read: {path}: {error}") from None
    asked = [_read(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not asked:
        raise ConfigError(f"{path} has no prompts; write one on each line")
    if len(asked) > MOST_PROMPTS:
        raise ConfigError(f"{path} has {len(asked)} prompts; at most {MOST_PROMPTS} are measured")
    return asked


def _read(line: str, number: int) -> Asked:
    if not line.lstrip().startswith("{"):
        return Asked([{"role": "user", "content": line}], "", "")
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"line {number} of the prompts is not JSON") from None
    messages, prompt = given.get("messages"), given.get("prompt")
    prediction = _text_of(given.get("prediction") or "")
    if prediction is None:
        raise ConfigError(
            f"line {number} of the prompts: its prediction is neither a text, nor an object with a "
            "text or parts of one as its content, as in OpenAI's API"
        )
    if isinstance(messages, list):
        return Asked(messages, "", prediction)
    if not isinstance(prompt, str):
        raise ConfigError(
            f"line {number} of the prompts has neither messages nor a text as its prompt"
        )
    return Asked(None, prompt, prediction)


def _text_of(prediction: object) -> str | None:
    """Return the text of a prediction, given as such or as OpenAI's API has it; None: it is none.

    Parts follow each other directly, as they do there.
    """
    if isinstance(prediction, dict):
        prediction = prediction.get("content") or ""
    if isinstance(prediction, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in prediction]
        texts = [part for part in parts if isinstance(part, str)]
        prediction = "".join(texts) if len(texts) == len(parts) else None
    return prediction if isinstance(prediction, str) else None


def compare(
    model: str,
    options: dict[str, Any],
    asked: Sequence[Asked],
    sampling: SamplingParams,
    streams: int,
    drafter: SpeculativeConfig | None = None,
) -> list[Gain]:
    """Answer all prompts in each way; the answers must be equal.

    `drafter` has the settings of a way that needs more than the prompts, such as a draft model.
    """
    gains: list[Gain] = []
    expected: list[list[int]] = []
    ways = WAYS
    if drafter is not None:
        ways = {**WAYS, DRAFT_MODEL if drafter.method == AUTO else drafter.method: drafter}
    for way, settings in ways.items():
        if way == "prediction" and not any(each.prediction for each in asked):
            continue
        gain = Gain(way)
        with LLM(model, **options, speculative_config=settings) as llm:
            _answer(llm, asked[:1], replace(sampling, max_tokens=8), Gain(way))  # warms it up
            llm.reset_prefix_cache()
            answers: list[list[int]] = []
            for first in range(0, len(asked), streams):
                answers += _answer(llm, asked[first : first + streams], sampling, gain)
        expected = expected or answers
        if answers != expected:
            raise AssertionError(f"the answers with {way} differ from those without drafts")
        if gains:
            gain.ratio = gains[0].seconds / gain.seconds
        gains.append(gain)
    return gains


def _answer(
    llm: LLM, asked: Sequence[Asked], sampling: SamplingParams, gain: Gain
) -> list[list[int]]:
    """Answer some prompts together, and add up what it took."""
    answers = []
    chats = [each for each in asked if each.messages is not None]
    texts = [each for each in asked if each.messages is None]
    began = time.perf_counter()
    for some, ask in ((chats, llm.chat), (texts, llm.generate)):
        if not some:
            continue
        given: list[Any] = [each.messages or each.prompt for each in some]
        is_predicting = gain.way == "prediction"
        each_sampling = [
            replace(sampling, prediction=each.prediction if is_predicting else "") for each in some
        ]
        for output in ask(given, each_sampling, use_tqdm=False):
            answers.append(list(output.outputs[0].token_ids))
            stats = output.metrics
            assert stats is not None
            gain.tokens += len(answers[-1])
            gain.steps += stats.num_decode_steps
            gain.drafts += stats.num_drafts
            gain.accepted += stats.num_accepted_drafts
    gain.seconds += time.perf_counter() - began
    return answers
