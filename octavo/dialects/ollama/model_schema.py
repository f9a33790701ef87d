"""The requests and the responses of the routes about models."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import UNSET, Struct, UnsetType, field

from octavo.dialects.ollama.schema import IGNORED, Name, asked_model
from octavo.serving.schema.rules import FieldRules


class ShowRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The request to describe a model; `name` is the older form of `model`."""

    rules: ClassVar[FieldRules] = FieldRules(asked_model=asked_model)
    model: Name | None = None
    name: Name | None = None
    verbose: bool | None = None


class PullRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The request for a model to be there; `name` is the older form of `model`."""

    rules: ClassVar[FieldRules] = FieldRules(ignored=IGNORED)
    model: Name | None = None
    name: Name | None = None
    stream: bool | None = None  # default: true
    insecure: bool | None = None


class OllamaDetails(Struct, kw_only=True):
    """The kind of a model and of its weights."""

    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str  # 134.5M
    quantization_level: str  # the type of most weights, as they are stored


class OllamaCard(Struct, kw_only=True):
    """A model in a list."""

    name: str
    model: str
    size: int  # bytes
    digest: str
    details: OllamaDetails
    modified_at: str | UnsetType = UNSET  # of /api/tags
    size_vram: int | UnsetType = UNSET  # of /api/ps, as are the others
    expires_at: str | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class OllamaModels(Struct, kw_only=True):
    """The served model, under each of its names."""

    models: list[OllamaCard]


class OllamaShown(Struct, kw_only=True):
    """The description of a model."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    info: dict[str, Any] = field(name="model_info")
    capabilities: list[str]
    modified_at: str


class OllamaVersion(Struct, kw_only=True):
    """The version of the server."""

    version: str


class OllamaStatus(Struct, kw_only=True):
    """The state of a model that was asked for."""

    status: str = "success"
