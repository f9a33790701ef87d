"""The further samplers of a request, between the fields of a dialect and the neutral options."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from octavo.core.sampling_params import SamplerOptions
from octavo.dialects.common.schema.samplers import SamplerFields

FIELDS = (*(each.name for each in structs.fields(SamplerFields)), "samplers")


def given_samplers(request: Struct) -> dict[str, Any]:
    """Return `sampler_options` with those fields of a request that have a value, if any has."""
    given = {name: getattr(request, name, None) for name in FIELDS}
    found = {name: value for name, value in given.items() if value is not None}
    return {"sampler_options": found} if found else {}


def fields_of(options: SamplerOptions | None) -> dict[str, Any]:
    """Return the fields that ask for some options; none for those that are off."""
    if options is None:
        return {}
    given = {name: getattr(options, name) for name in FIELDS}
    return {name: list(each) if isinstance(each, tuple) else each for name, each in given.items()}
