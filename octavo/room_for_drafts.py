"""The drafts that a step has room for, by the settings of speculation and what the layers keep."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from octavo.backends.base import KVLayout, StepSize
from octavo.backends.kind import Sizes
from octavo.core.config import ConfigError, CoreConfig
from octavo.layers import LastStates, Model
from octavo.models.load import OpenedModel
from octavo.options.engine import EngineArguments
from octavo.options.speculation import (
    AUTO,
    DRAFT_MODEL,
    METHODS,
    MOST_TOKENS,
    PREDICTED_STEP_TOKENS,
    PREDICTED_TOKENS,
)

log = logging.getLogger(__name__)


def follow_block(arguments: EngineArguments, opened: OpenedModel) -> EngineArguments:
    """Ask for as many drafts as files were made to draft in one pass, if no number is given."""
    speculation, drafter = arguments.speculative_config, opened.drafter
    if speculation is None or drafter is None or speculation.num_speculative_tokens is not None:
        return arguments
    block = drafter.model.draft_block
    most = speculation.most_tokens if block is None else block.num_tokens
    return replace(arguments, speculative_config=replace(speculation, num_speculative_tokens=most))


def check_drafts(arguments: EngineArguments, layout: KVLayout) -> None:
    """Refuse drafts for a model whose layers cannot forget a rejected one."""
    if _proposes(arguments) and layout.has_states:
        raise ConfigError(
            "speculative_config: this model keeps states, which cannot be taken back when a draft "
            "is rejected; leave it out"
        )


def _proposes(arguments: EngineArguments) -> bool:
    """Return whether drafts are proposed to all requests, not only to those with a prediction."""
    speculation = arguments.speculative_config
    return speculation is not None and speculation.method != "off"


class Drafts(NamedTuple):
    """The most drafts of a step: those of one sequence, and those of all."""

    of_sequence: int
    of_step: int


def with_drafts(
    core: CoreConfig,
    arguments: EngineArguments,
    opened: OpenedModel,
    layout: KVLayout,
    sizes: Sizes,
) -> CoreConfig:
    """Return the settings with the bounds of drafts, and whether all requests have some."""
    of_sequence, of_step = most_drafts(arguments, layout, sizes)
    core = replace(
        core,
        max_drafts=of_sequence,
        max_step_drafts=of_step,
        proposes=_proposes(arguments),
        max_branches=most_branches(arguments, layout, sizes),
    )
    speculation = arguments.speculative_config
    if speculation is None or not (core.proposes and of_sequence):
        return core
    kind, most = speculation.method, speculation.most_tokens
    if kind == AUTO and opened.drafter is not None:
        found = opened.drafter.architecture
        kind = found if found in METHODS else DRAFT_MODEL
    log.info("speculation: method=%s, up to %d drafts for a sequence in a step", kind, most)
    if opened.drafter is None:
        return core
    longest = min(core.max_model_len, opened.drafter.spec.max_len)
    if longest < core.max_model_len:
        log.warning(
            "the draft model was made for %d tokens: nothing is drafted behind them", longest
        )
    drafter, most = opened.drafter.model, speculation.most_tokens
    if isinstance(drafter.features, LastStates):  # each head proposes one, and lacks nothing
        most = min(most, len(drafter.programs))
        core = replace(core, max_ahead_lag=core.max_model_len)
        core = replace(core, ahead_forks=True)
    if drafter.draft_block is not None:  # so do the rows of a block, of what the model itself keeps
        most = drafter.draft_block.num_tokens
        core = replace(core, max_ahead_lag=core.max_model_len)
        core = replace(core, ahead_forks=True, ahead_in_block=True)
    width = speculation.draft_candidates
    return replace(core, max_ahead=most, max_ahead_len=longest, ahead_width=width)


def most_branches(arguments: EngineArguments, layout: KVLayout, sizes: Sizes) -> int:
    """Return the most branches of trees of drafts in a step; 0: drafts are chains."""
    speculation = arguments.speculative_config
    if speculation is None or speculation.draft_candidates < 2 or layout.keeps_nothing:
        return 0
    if not sizes.branches:
        raise ConfigError(
            f"speculative_config: draft_candidates={speculation.draft_candidates} makes trees of "
            "drafts, and this backend verifies chains alone; leave it out"
        )
    return sizes.branches


def most_drafts(arguments: EngineArguments, layout: KVLayout, sizes: Sizes) -> Drafts:
    """Return the most drafts of a step, which must have room for one if any are proposed.

    Predictions have some without a proposer too, where the layers can forget a rejected one.
    """
    speculation = arguments.speculative_config
    if speculation is not None and _proposes(arguments):
        if sizes.max_num_batched_tokens < 2:
            raise ConfigError(
                "speculative_config needs steps of at least 2 tokens, a known one and a draft, and "
                f"max_num_batched_tokens={sizes.max_num_batched_tokens}; raise it, or leave the "
                "other out"
            )
        most = speculation.most_tokens
        if branches := most_branches(arguments, layout, sizes):
            most = min(MOST_TOKENS, most + branches)
        if layout.keeps_nothing:
            return Drafts(0, 0)
        of_step = max(most * sizes.max_num_seqs, PREDICTED_STEP_TOKENS)
        return Drafts(max(most, PREDICTED_TOKENS), of_step)
    can_forget = not (layout.keeps_nothing or layout.has_states)
    if speculation is not None or not can_forget or sizes.max_num_batched_tokens < 2:
        return Drafts(0, 0)
    return Drafts(PREDICTED_TOKENS, PREDICTED_STEP_TOKENS)


def step_of_drafter(largest: StepSize, program: Model) -> StepSize:
    """Return the largest step of a further program over the same sequences."""
    spec, sequences = program.spec, largest.sequences
    size = structs.replace(largest, wanted_rows=sequences, hidden=spec.hidden)
    rows = largest.rows + sequences
    if program.draft_block is not None:
        rows = sequences * program.draft_block.rows
        most = min(sequences * program.draft_block.num_tokens, largest.rows)
        size = structs.replace(size, wanted_rows=most)
    if isinstance(program.features, LastStates):  # neither attention nor an MLP
        return structs.replace(size, rows=sequences, ffn=0, heads=0, kv_heads=0)
    return structs.replace(
        size,
        rows=rows,
        ffn=spec.ffn,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
    )
