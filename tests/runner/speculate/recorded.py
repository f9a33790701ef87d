"""What an engine proposes behind each text, with a drafter that reads hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from octavo import LLM, SamplingParams
from octavo.core.pace.ahead_counts import AheadCounts
from octavo.core.pace.draft_counts import DraftCounts
from octavo.core.sequence import Sequence as CoreSequence
from octavo.runner.speculate.draft_model import DraftModelProposer
from octavo.runner.speculate.heads import HeadsProposer
from octavo.runner.speculate.proposer import Proposal, Turn
from tests.core.ahead_trees import trees_by
from tests.runner.speculate.mixed_requests import ENGINE

Proposals = dict[tuple[int, ...], tuple[int, ...]]
Proposers = type[DraftModelProposer] | type[HeadsProposer]
PROMPTS = ([5, 6, 7, 8, 9], [11], [*range(20, 100)], [*range(20, 84), 9, 4, 7])
MOST = 3


@contextmanager
def recorded(
    directory: Path, drafter: Path | None, backend: str, proposer: Proposers = DraftModelProposer
) -> Iterator[tuple[LLM, Proposals]]:
    """Make an engine, and keep what is proposed behind each text; None: by the model's own layer.

    Nothing is proposed in some steps, so that the drafter has to catch up later.
    """
    found: Proposals = {}
    propose = proposer.propose

    def recording(self: Any, turns: Sequence[Turn]) -> Sequence[Proposal]:
        proposals: Sequence[Proposal] = propose(self, turns)
        for turn, proposal in zip(turns, proposals, strict=True):
            if proposal.tokens:
                found[(*turn.tokens.tolist(),)] = (*proposal.tokens,)
        return proposals

    def counts(self: AheadCounts, sampling: list[CoreSequence], *_: int) -> list[int]:
        wanted = [MOST * (len(each.tokens) // 4 % 3 < 2) for each in sampling]
        return [min(each, self._useful(one)) for each, one in zip(wanted, sampling, strict=True)]

    way = {"method": "mtp"} if drafter is None else {"model": str(drafter)}
    settings = {**way, "num_speculative_tokens": MOST}
    options = {**ENGINE, "backend": backend, "dtype": "float32", "speculative_config": settings}
    with (
        mock.patch.object(DraftCounts, "_costs", return_value=None),
        mock.patch.object(AheadCounts, "_trees", trees_by(counts)),
        mock.patch.object(AheadCounts, "learn"),
        mock.patch.object(proposer, "propose", recording),
        LLM(str(directory), **options) as llm,
    ):
        yield llm, found


def proposals_of(
    directory: Path, drafter: Path | None, backend: str, proposer: Proposers = DraftModelProposer
) -> Proposals:
    """Return what is proposed behind the texts of some requests, of which some share blocks."""
    sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with recorded(directory, drafter, backend, proposer) as (llm, found):
        for prompt in PROMPTS:
            llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    return found
