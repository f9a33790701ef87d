"""The file and the class of each architecture."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Protocol

from octavo.layers import CausalLM, ModelSpec
from octavo.loader.errors import quote
from octavo.models.config_reader import Config, ConfigurationError


class Family(Protocol):
    """A family's class, which reads a config.json and declares the model that it describes."""

    def read(self, config: Config) -> ModelSpec: ...

    def __call__(self, spec: ModelSpec) -> CausalLM:
        """Declare the model; its layers are not yet bound."""


# An architecture, as config.json names it → (module of octavo.models, class).
FAMILIES: dict[str, tuple[str, str]] = {
    "LlamaForCausalLM": ("llama", "Llama"),
    "MistralForCausalLM": ("llama", "Llama"),
    "Qwen2ForCausalLM": ("llama", "Llama"),
    "Qwen3ForCausalLM": ("llama", "Llama"),
    "SmolLM3ForCausalLM": ("llama", "Llama"),
    "GraniteForCausalLM": ("llama", "Llama"),
    "Phi3ForCausalLM": ("llama", "Llama"),
    "GlmForCausalLM": ("llama", "Llama"),
    "GemmaForCausalLM": ("llama", "Llama"),
    "Gemma2ForCausalLM": ("gemma", "Gemma"),
    "Gemma3ForCausalLM": ("gemma", "Gemma"),
    "Gemma3ForConditionalGeneration": ("gemma", "Gemma"),
    "Glm4ForCausalLM": ("glm", "Glm4"),
    "Olmo2ForCausalLM": ("olmo", "Olmo"),
    "Olmo3ForCausalLM": ("olmo", "Olmo"),
    "CohereForCausalLM": ("cohere", "Cohere"),
    "Cohere2ForCausalLM": ("cohere", "Cohere"),
    # without RMSNorm
    "GPT2LMHeadModel": ("gpt2", "GPT2"),
    "GPTNeoXForCausalLM": ("gpt_neox", "GPTNeoX"),
    "StableLmForCausalLM": ("stablelm", "StableLM"),
    "FalconForCausalLM": ("falcon", "Falcon"),
    # with experts
    "MixtralForCausalLM": ("mixture", "Mixture"),
    "Qwen2MoeForCausalLM": ("mixture", "Mixture"),
    "Qwen3MoeForCausalLM": ("mixture", "Mixture"),
    "OlmoeForCausalLM": ("mixture", "Mixture"),
    "GptOssForCausalLM": ("gpt_oss", "GptOss"),
}


def family_of(architecture: str) -> Family:
    """Import and return the class that implements an architecture."""
    if architecture not in FAMILIES:
        near = difflib.get_close_matches(architecture, FAMILIES, n=3, cutoff=0.3)
        raise ConfigurationError(
            f"config: architectures: {quote(architecture)} is not supported; the nearest that are: "
            f"{', '.join(near) or ', '.join(sorted(FAMILIES))}"
        )
    module, name = FAMILIES[architecture]
    family: Family = getattr(import_module(f"octavo.models.{module}"), name)
    return family
