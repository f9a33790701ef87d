"""The default model in the whole engine: a text does not depend on how it was scheduled."""

from __future__ import annotations

from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.loader.errors import DownloadError

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
]
SAMPLINGS = [
    SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True),
    SamplingParams(seed=3, max_tokens=6, ignore_eos=True, top_p=0.9, presence_penalty=0.5),
]


def model(**options: Any) -> LLM:
    """Load the default model; skip the test if it cannot be fetched."""
    try:
        return LLM("smollm2", max_model_len=128, **options)
    except DownloadError as error:
        pytest.skip(str(error))


def texts(llm: LLM, sampling: SamplingParams) -> list[str]:
    """Return the texts for all prompts, run at once."""
    outputs = llm.generate(PROMPTS, sampling, use_tqdm=False)
    return [output.outputs[0].text for output in outputs]


@pytest.mark.slow
def test_alone_in_a_batch_in_chunks_preempted_or_cached_the_text_is_the_same() -> None:
    llm = model()
    expected = []
    for sampling in SAMPLINGS:
        alone = [llm.generate(p, sampling, use_tqdm=False)[0].outputs[0].text for p in PROMPTS]
        assert texts(llm, sampling) == alone, "in a batch, and from the prefix cache"
        expected.append(alone)
    assert expected[0][0].startswith(" Paris")
    assert expected[0] != expected[1]
    del llm
    chunked = model(max_num_batched_tokens=7)
    assert [texts(chunked, sampling) for sampling in SAMPLINGS] == expected
    del chunked
    crowded = model(num_gpu_blocks_override=3)
    crowded_texts = [texts(crowded, sampling) for sampling in SAMPLINGS]
    assert crowded_texts == expected
    stats = crowded._model.core.scheduler.stats
    assert stats.num_preemptions > 0
