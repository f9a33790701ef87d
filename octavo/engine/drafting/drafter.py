"""The second model, which drafts: opened beside the first, whose vocabulary it must have."""

from __future__ import annotations

import logging

from msgspec import structs

from octavo.backends.adapter_weights import AdapterSettings
from octavo.backends.base import DRAFTER, FLOAT_TYPES, Backend, KVLayout
from octavo.backends.kind import WeightFile
from octavo.core.config import ConfigError
from octavo.engine.drafting.vocabularies import check_tokens, translation
from octavo.layers import DraftBlock, HiddenStates, Model
from octavo.loader import Checkpoint, ModelFiles
from octavo.loader import resolve as resolve_source
from octavo.models.build import bind
from octavo.models.footprint import tensor_sizes
from octavo.models.kv_layout import place_layers
from octavo.models.load import OpenedModel, open_model
from octavo.options.engine import EngineArguments
from octavo.options.speculation import (
    AUTO,
    DRAFT_MODEL,
    DRAFTER_WEIGHTS,
    MOST_TOKENS,
    MTP,
    SpeculativeConfig,
)

log = logging.getLogger(__name__)

_UNFIT_KINDS = {
    "state": "keeps states, which cannot be taken back when a draft is refused",
    "none": "keeps no keys and values of what it has read",
    "cross": "reads the positions of an encoder",
}


def open_with_drafter(arguments: EngineArguments) -> tuple[ModelFiles, OpenedModel]:
    """Open the model that the arguments name, and the one that drafts for it, if there is one."""
    source = resolve_source(arguments.model, has_weights=arguments.has_weights)
    opened = open_model(source, arguments.max_model_len, arguments.hf_overrides)
    speculation = arguments.speculative_config
    if speculation is None or not speculation.has_drafter:
        return source, opened
    drafter = _open_drafter(arguments, speculation, source, opened)
    _check_quantization(speculation, drafter)
    return source, structs.replace(opened, drafter=drafter)


def _open_drafter(
    arguments: EngineArguments,
    speculation: SpeculativeConfig,
    source: ModelFiles,
    opened: OpenedModel,
) -> OpenedModel:
    name = speculation.drafter or arguments.model
    if not opened.spec.has_head:
        raise _error(name, f"{arguments.model!r} draws no tokens for which it could draft")
    if speculation.method == MTP:
        from octavo.models.drafters.mtp import open_own_layer

        return open_own_layer(opened, MTP)
    other = resolve_source(name)
    checkpoint = other.open()
    kind = _kind_of(name, other, checkpoint, speculation.method)
    if kind != DRAFT_MODEL:
        if speculation.use_heterogeneous_vocab:
            raise _error(
                name,
                "what was trained for a model has its tokens; leave out use_heterogeneous_vocab",
            )
        # Here, since other models need none of it.
        from octavo.models.drafters.kinds import open_drafter

        drafter = open_drafter(other, checkpoint, kind, opened)
        _shorten_block(drafter.model, speculation.num_speculative_tokens)
        return drafter
    max_len = arguments.max_model_len or opened.spec.max_len
    drafter = open_model(other, max_len, checkpoint=checkpoint)
    if not drafter.spec.has_head:
        raise _error(name, "it draws no tokens: it has no head for them")
    if speculation.use_heterogeneous_vocab:
        ids = translation(name, (source, opened), (other, drafter))
        drafter = open_model(other, max_len, checkpoint=checkpoint, ids=ids)
    else:
        check_tokens(name, (source, opened), (other, drafter))
    _check_layers(name, place_layers(drafter.model))
    return drafter


def _check_quantization(speculation: SpeculativeConfig, drafter: OpenedModel) -> None:
    """Refuse a format that the drafter's files are not in, and that no floats of them become."""
    asked, found = speculation.quantization, drafter.quantization
    if asked is None:
        return
    from octavo.options.quantization import is_same  # here, since few engines need it

    if found is not None and is_same(asked, found):
        return
    types = {tensor.type for tensor in tensor_sizes(drafter) if tensor.is_matrix}
    if types.isdisjoint(FLOAT_TYPES):
        raise ConfigError(
            f"speculative_config: quantization={asked!r}: the drafter's files are quantised "
            f"already ({', '.join(sorted(types))}), and are kept so; leave it out"
        )
    if speculation.weights is None:
        raise ConfigError(
            f"speculative_config: quantization={asked!r}: the drafter's files are not in that "
            "format, and floats do not become it as they are loaded; take one of "
            f"{', '.join(DRAFTER_WEIGHTS)}, or leave it out"
        )


def _shorten_block(model: Model, num_tokens: int | None) -> None:
    """Let a pass propose no more tokens than were asked for; None: all that it was made for."""
    block = model.draft_block
    if block is not None:
        num_tokens = num_tokens or MOST_TOKENS
        model.draft_block = DraftBlock(1 + min(block.num_tokens, num_tokens), block.mask)


def _kind_of(name: str, source: ModelFiles, checkpoint: Checkpoint, method: str) -> str:
    """Return how the files of a drafter draft; refuse files for another method than asked for."""
    from octavo.models.drafters.kinds import KINDS, kind_of_files

    found = kind_of_files(source, checkpoint) or DRAFT_MODEL
    if found not in (DRAFT_MODEL, *KINDS):
        raise _error(
            name, f"its files are for the method {found!r}, and there is {', '.join(KINDS)}"
        )
    if method not in (AUTO, found):
        what = "a model that drafts by itself" if found == DRAFT_MODEL else f"for {found!r}"
        raise _error(name, f"method={method!r}, and its files are {what}; leave the method out")
    return found


def bind_drafter(opened: OpenedModel, backend: Backend) -> HiddenStates | None:
    """Give the drafter its weights; return what it reads of the model, which has its own already.

    Nothing is done if there is none.
    """
    drafter = opened.drafter
    if drafter is None:
        return None
    from octavo.models.drafters.shared import take_shared

    bind(drafter.model, backend.maker(DRAFTER), drafter.weights)
    take_shared(drafter.model, opened.model)
    return drafter.model.features


def record_programs(
    opened: OpenedModel,
    layout: KVLayout,
    backend: Backend,
    block_size: int,
    adapters: AdapterSettings | None = None,
) -> None:
    """Give the backend the model, whose weights are bound, and the one that drafts for it."""
    features = bind_drafter(opened, backend)
    backend.prepare(opened.model, layout, block_size, adapters=adapters, features=features)
    if opened.drafter is not None:
        backend.add_program(opened.drafter.model, DRAFTER)


def layout_of(opened: OpenedModel) -> KVLayout:
    """Place the layers of a model, and of the one that drafts for it, in groups of the cache."""
    return place_layers(opened.model, None if opened.drafter is None else opened.drafter.model)


def weight_files(opened: OpenedModel) -> tuple[WeightFile, ...]:
    """Return the files of a model's weights, and of those of the one that drafts for it."""
    own, drafter = tuple(opened.checkpoint.files), opened.drafter
    if drafter is None or drafter.checkpoint is opened.checkpoint:
        return own
    return (*own, *drafter.checkpoint.files)


def _check_layers(name: str, layout: KVLayout) -> None:
    for group in layout.groups:
        why = _UNFIT_KINDS.get(group.spec.kind)
        if why is not None:
            raise _error(name, f"it {why}; take another model, or leave it out")


def _error(name: str, why: str) -> ConfigError:
    return ConfigError(f"speculative_config: {name!r} cannot draft: {why}")
