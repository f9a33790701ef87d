"""The requests and responses of the routes that load and unload adapters."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from octavo.serving.schema.model_names import AdapterName
from octavo.serving.schema.rules import FieldRules

MAX_PATH = 4096
_SAME = "adapters of one form are read"
Path = Annotated[str, Meta(min_length=1, max_length=MAX_PATH)]


class LoadAdapterRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """An adapter to load from this machine's files."""

    rules: ClassVar[FieldRules] = FieldRules(
        ignored={
            "is_3d_lora_weight": _SAME,
            "pinned": "adapters that are not in use make room, and are loaded again",
        }
    )
    lora_name: AdapterName
    lora_path: Path
    load_inplace: bool = False  # the name may be there already, and gets another content
    base_model_name: AdapterName | None = None


class UnloadAdapterRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """An adapter to unload."""

    lora_name: AdapterName
    lora_int_id: Annotated[int, Meta(ge=0)] | None = None  # no effect: names are unique


class AdapterChange(Struct, kw_only=True):
    """The adapters after a change, as SGLang lists them."""

    success: bool
    error_message: str = ""
    loaded_adapters: dict[str, str] = {}  # paths by names
