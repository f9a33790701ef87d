"""AutoRound's checkpoints: the tensors of GPTQ or AWQ, with settings in words of its own.

`packing_format` names the tensors: `auto_round:auto_gptq` are GPTQ's, `auto_round:auto_awq` are
AWQ's, and `auto_round` are GPTQ's with zero points as they are, as in version 2. `extra_config`
has the settings of single modules, by exact names or by regexes that a part of a name may match;
with 16 bits or more, a module is not quantised. Other modules outside the blocks that
`block_name_to_quantize` lists have plain weights, and are found by that.
"""

from __future__ import annotations

from octavo.loader.errors import UnsupportedFormatError, quote
from octavo.quant.methods import awq, gptq
from octavo.quant.methods.word_modules import ModuleFormat, WordModules, check_count, make_rule
from octavo.quant.weight_format import Settings

_FLOAT_BITS = 16  # and more: such a module is not quantised
_REGEX_SIGNS = frozenset("*+?^$()[]{}|\\")
# What GPTQ calls the tensors of each packing; AWQ's are called awq.
_PACKINGS = {
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    "auto_round:auto_awq": "awq",
    "auto_round:awq": "awq",
    "auto_round": "gptq_v2",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round:exllamav2": "gptq_v2",
    "auto_round:tritonv2": "gptq_v2",
}


def read_auto_round(settings: Settings) -> WordModules:
    """Read and check the settings of a checkpoint, and those of single modules."""
    key = "packing_format" if settings.has("packing_format") else "backend"  # of older files
    packing = settings.string(key, "auto_round:auto_gptq").lower()
    if packing not in _PACKINGS:
        raise UnsupportedFormatError(
            f"AutoRound's {key} {quote(packing)} is not supported; supported are: "
            f"{', '.join(_PACKINGS)}",
            advice="export the model in one of these, or use a GGUF file",
        )
    usual = _module_format(settings, _PACKINGS[packing])
    if usual is None:
        raise UnsupportedFormatError("AutoRound's bits must be below 16")
    if not settings.has("extra_config"):
        return WordModules(usual)
    extra = settings.part("extra_config")
    formats = {
        name: _module_format(extra.part(name).over(settings.values), _PACKINGS[packing])
        for name in extra.values
    }
    regexes = [name for name in formats if not _REGEX_SIGNS.isdisjoint(name)]
    check_count(len(regexes), "extra_config")
    rules = tuple(make_rule(each, formats[each], anywhere=True) for each in regexes)
    return WordModules(usual, formats, rules)


def _module_format(settings: Settings, packing: str) -> ModuleFormat | None:
    """Read the settings of a module; None if it is not quantised."""
    kind = settings.string("data_type", "int")
    if kind == "float" or settings.integer("bits") >= _FLOAT_BITS:
        return None
    if kind != "int":
        raise UnsupportedFormatError(
            f"AutoRound's data_type {quote(kind)} is not supported; supported is: int",
            advice="use a model of integers, or a GGUF file",
        )
    is_symmetric = settings.boolean("sym", True)
    if packing == "awq":
        return awq.module_format(settings.over({"zero_point": not is_symmetric}))
    return gptq.module_format(settings.over({"checkpoint_format": packing, "sym": True}))
