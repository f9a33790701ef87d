"""The file and the class of each architecture."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import NamedTuple, Protocol

from octavo.layers import Model, ModelSpec
from octavo.loader.errors import quote
from octavo.models.config_reader import Config, ConfigurationError


class Family(Protocol):
    """A family's class, which reads a config.json and declares the model that it describes."""

    def read(self, config: Config) -> ModelSpec: ...

    def __call__(self, spec: ModelSpec) -> Model:
        """Declare the model; its layers are not yet bound."""


# Encoders by the beginning of their architectures' names, and what follows it there.
ENCODERS: dict[str, tuple[str, str]] = {
    "Bert": ("bert", "Bert"),
    "Roberta": ("bert", "Roberta"),
    "XLMRoberta": ("bert", "Roberta"),
    "Camembert": ("bert", "Roberta"),
    "MPNet": ("bert", "MPNet"),
    "DistilBert": ("bert", "DistilBert"),
    "NomicBert": ("bert", "NomicBert"),
    "ModernBert": ("modernbert", "ModernBert"),
}
TASKS = (
    "ForCausalLM",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "Model",
)
ENCODER_TASKS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")

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
    # encoders, which generate nothing
    **{f"{name}{task}": place for name, place in ENCODERS.items() for task in ENCODER_TASKS},
}


class Kind(NamedTuple):
    """An architecture: its family, and the task that its checkpoints serve."""

    family: Family
    base: str  # the family's name in the architecture's: Bert, Qwen3
    task: str  # what follows it: ForCausalLM, Model, ForSequenceClassification …

    @property
    def generates(self) -> bool:
        return self.task == "ForCausalLM" or self.task not in TASKS


def kind_of(architecture: str) -> Kind:
    """Import the class that implements an architecture, and say what its checkpoints are for."""
    task = next((task for task in TASKS if architecture.endswith(task)), "")
    base = architecture.removesuffix(task)
    if base not in ENCODERS and task in ("Model", "ForSequenceClassification"):
        as_decoder = f"{base}ForCausalLM"
        if as_decoder in FAMILIES:
            return Kind(family_of(as_decoder), base, task)
    return Kind(family_of(architecture), base, task)


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
