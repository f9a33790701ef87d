"""The texts that a drafter is trained with: answers that Octavo gave with the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.draft_head.progress import Progress
from benchmarks.draft_head.prompts import make_prompts
from octavo import LLM, SamplingParams

STREAMS = 96  # that are answered at one time
PART = 192  # answers for each line of progress, after which the run may be stopped and resumed
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)  # of every four answers


class Text(NamedTuple):
    """The tokens of a prompt and of its answer."""

    prompt: list[int]
    answer: list[int]


def write_texts(
    model: str, path: Path, *, answers: int, tokens: int, seed: int, share: tuple[int, int] = (0, 1)
) -> None:
    """Write answers to a file of JSON lines, behind those that it has already, in one thread.

    Of all prompts, those of one share are answered, such as the first of two.
    """
    numbers = range(answers)[share[0] :: share[1]]
    prompts = make_prompts(answers, seed)
    texts = list(read_texts(path)) if path.exists() else []
    num_done = len(texts)
    if num_done >= len(numbers):
        return
    progress = Progress(f"answers to {path.name}", len(numbers), num_done)
    options: dict[str, Any] = {"max_model_len": 1024, "max_num_seqs": STREAMS, "num_threads": 1}
    with LLM(model, **options) as llm, path.open("w") as file:
        for text in texts:  # without a line that was broken off
            file.write(json.dumps(text) + "\n")
        for first in range(num_done, len(numbers), PART):
            some = numbers[first : first + PART]
            sampling = [
                SamplingParams(
                    temperature=TEMPERATURES[number // share[1] % len(TEMPERATURES)],
                    max_tokens=tokens,
                    seed=seed + number,
                )
                for number in some
            ]
            conversations = [[{"role": "user", "content": prompts[each]}] for each in some]
            outputs = llm.chat(conversations, sampling, use_tqdm=False)
            for output in outputs:
                text = Text(list(output.prompt_token_ids), list(output.outputs[0].token_ids))
                file.write(json.dumps(text) + "\n")
            file.flush()
            progress.show(first + len(some))


def read_texts(path: Path) -> Iterator[Text]:
    """Read the texts of a file; the last line may be broken off, and is no text then."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield Text(*json.loads(line))
