"""The samplers of a request as the stages of its slot, in the request's order."""

from __future__ import annotations

from octavo.backends.step import Dry, Mirostat, Stage
from octavo.core.sampling_params import (
    LEAST_TEMPERATURE,
    MAX_WINDOW,
    SAMPLERS,
    SamplerOptions,
    SamplingParams,
)

# What a slot does without a chain, in this order.
_PLAIN = [name for name in SAMPLERS if name in ("temperature", "min_p", "top_k", "top_p")]
_KEEP_LIKELIEST = {"top_n_sigma", "min_p", "top_k", "top_p"}  # whatever else they leave


def temperature_of(sampling: SamplingParams) -> float:
    """Return the temperature; 0 if the most likely token is taken."""
    return 0.0 if sampling.is_greedy else max(sampling.temperature, LEAST_TEMPERATURE)


def chain_of(sampling: SamplingParams) -> tuple[Stage, ...]:
    """Return the stages of a request; none if it does what a slot does without a chain."""
    options = sampling.sampler_options
    if options is None or (options.mirostat and sampling.is_greedy):
        return ()  # mirostat takes the place of all filters, behind a temperature that leaves one
    found = _stages(sampling, options)
    if sampling.has_state:
        divided = (found["temperature"],) if "temperature" in found else ()
        return (*divided, Stage("mirostat", options.mirostat))
    order = options.samplers or SAMPLERS
    chain = [found[name] for name in order if name in found]
    names = [stage.name for stage in chain]
    if sampling.is_greedy and "temperature" in names:
        before = names[: names.index("temperature")]
        if _KEEP_LIKELIEST.issuperset(before):
            return ()  # nothing changes which token is the most likely one
    is_plain = names == [name for name in _PLAIN if name in names]
    if is_plain and not any(stage.min_keep or stage.range for stage in chain):
        return ()
    return tuple(chain)


def _stages(sampling: SamplingParams, options: SamplerOptions) -> dict[str, Stage]:
    """Return the samplers that are on."""
    keep = options.min_keep if options.min_keep > 1 else 0
    temperature = temperature_of(sampling)
    spread = options.dynatemp_range if temperature and not options.mirostat else 0.0
    made: dict[str, Stage] = {}
    if temperature != 1.0 or spread:
        made["temperature"] = Stage(
            "temperature", temperature, range=spread, exponent=options.dynatemp_exponent
        )
    if options.top_n_sigma:
        made["top_n_sigma"] = Stage("top_n_sigma", options.top_n_sigma)
    if sampling.min_p:
        made["min_p"] = Stage("min_p", sampling.min_p, keep)
    if sampling.top_k:
        made["top_k"] = Stage("top_k", sampling.top_k)
    if options.typical_p < 1.0:
        made["typical_p"] = Stage("typical_p", options.typical_p, keep)
    if sampling.top_p < 1.0:
        made["top_p"] = Stage("top_p", sampling.top_p, keep)
    if options.has_xtc:
        made["xtc"] = Stage("xtc", options.xtc_probability, keep, options.xtc_threshold)
    return made


def mirostat_of(sampling: SamplingParams, state: float | None) -> Mirostat | None:
    """Return mirostat's parameters with its state behind the known tokens, if it is on."""
    options = sampling.sampler_options
    if options is None or not sampling.has_state:
        return None
    first = 2.0 * options.mirostat_tau
    mu = first if state is None else state
    return Mirostat(options.mirostat_tau, options.mirostat_eta, mu)


def dry_of(options: SamplerOptions) -> Dry | None:
    """Return the penalties for repetitions, if there are any."""
    if not options.has_dry:
        return None
    window = MAX_WINDOW if options.dry_penalty_last_n < 0 else options.dry_penalty_last_n
    return Dry(
        options.dry_multiplier,
        options.dry_base,
        options.dry_allowed_length,
        window,
        options.dry_breaker_ids or (),
    )
