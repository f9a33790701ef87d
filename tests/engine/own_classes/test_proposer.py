"""Drafts by a class of the operator's own: no text depends on it, nor on its failure."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from octavo import LLM, SamplingParams
from octavo.core.config import ConfigError
from octavo.core.pace.draft_counts import DraftCounts
from octavo.runner.speculate.own_class import OwnClassProposer
from octavo.runner.speculate.proposer import Turn
from tests.api.tiny import make_model
from tests.runner.speculate.mixed_requests import stats_of

HERE = "tests.engine.own_classes.proposers"
PROMPTS = [{"prompt_token_ids": [3, 4, 5, each, 3, 4, 5]} for each in range(6, 12)]
SAMPLING = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, logit_bias=((3, 2.0),))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def answers(directory: Path, name: str | None) -> tuple[list[Any], int, int]:
    config = {"method": "off"} if name is None else settings(name)
    with (
        mock.patch.object(DraftCounts, "_costs", return_value=None),
        LLM(str(directory), num_gpu_blocks_override=60, speculative_config=config) as llm,
    ):
        outputs = llm.generate(PROMPTS, SAMPLING, use_tqdm=False)
        stats = stats_of(llm)
        return (
            [(each.outputs[0].token_ids, each.outputs[0].error) for each in outputs],
            stats.num_drafts,
            stats.num_accepted_drafts,
        )


def settings(name: str) -> dict[str, Any]:
    return {"method": "custom_class", "model": name, "num_speculative_tokens": 4}


def test_answers_are_those_without_drafts(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A class that fails is left out from then on, and each request goes on."""
    right, _, _ = answers(directory, None)
    fails = {"Dying", "Exiting", "Writing", "Fractions", "Unfree"}
    for name in ("Repeating", "Endless", "Wrong", *sorted(fails)):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            found, num_drafts, num_accepted = answers(directory, f"{HERE}:{name}")
        assert found == right, name
        assert len(caplog.records) == (name in fails), name
        assert bool(num_drafts) == (name not in ("Writing", "Fractions")), name
        if name in ("Repeating", "Dying", "Exiting", "Unfree"):
            assert num_accepted, name


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("no_such_module_anywhere:Mine", "cannot be imported"),
        (f"{HERE}:Missing", "has no 'Missing'"),
        (f"{HERE}:NUMBER", "it is a int, not a class"),
        (f"{HERE}:NoFree", "the class has no free"),
        (f"{HERE}:Broken", "its call failed with OSError: no such file"),
        (f"{HERE}:ExitingAtOnce", "its call failed with SystemExit: 3"),
        ("Mine", "write it as module:Class"),
    ],
)
def test_a_wrong_class_is_refused_before_the_model_loads(
    directory: Path, name: str, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.engine.build.open_with_drafter", None)
    with pytest.raises(ConfigError, match=match):
        LLM(str(directory), speculative_config=settings(name))


def test_drafts_that_are_never_right_are_soon_not_proposed() -> None:
    """Tokens that follow show it, and drafts need not be sent for that."""
    import numpy as np

    from tests.engine.own_classes.proposers import Wrong
    from tests.runner.plans import new_slot

    proposer = OwnClassProposer(Wrong(), 3)
    proposer.open(new_slot(0, [1], ()))
    lengths = []
    for length in range(4, 120):
        tokens = np.arange(100, 100 + length, dtype=np.int32)
        (proposal,) = proposer.propose([Turn(0, tokens, 3)])
        lengths.append(len(proposal.tokens))
        assert [*proposal.chances] == sorted(proposal.chances, reverse=True)
    assert lengths[0] == 3
    assert lengths[-1] == 0
    proposer.free(0)
