"""The file and the class of each architecture."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple, Protocol

from octavo.layers import Model, ModelSpec
from octavo.loader.errors import quote
from octavo.models.config_reader import Config, ConfigurationError
from octavo.nearest import nearest


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
# The ends of architectures' names. LMHeadModel is before Model, its own end.
GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
TASKS = (*GENERATING, "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "Model")
# Of checkpoints that decoders are also saved as: without their head, or with a classifier.
DECODER_TASKS = ("Model", "ForSequenceClassification", "ForTokenClassification")
ENCODER_TASKS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")

# An architecture, as config.json names it → (module of octavo.models, class).
FAMILIES: dict[str, tuple[str, str]] = {
    "LlamaForCausalLM": ("llama", "Llama"),
    "MistralForCausalLM": ("llama", "Llama"),
    "Qwen2ForCausalLM": ("llama", "Llama"),
    "Qwen3ForCausalLM": ("llama", "Llama"),
    "MiMoForCausalLM": ("llama", "Llama"),
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
    "Lfm2ForCausalLM": ("lfm2", "Lfm2"),
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
    "DeepseekV2ForCausalLM": ("deepseek", "DeepSeek"),
    "DeepseekV3ForCausalLM": ("deepseek", "DeepSeek"),
    # encoders, which generate nothing
    **{f"{name}{task}": place for name, place in ENCODERS.items() for task in ENCODER_TASKS},
}


class Kind(NamedTuple):
    """An architecture: its family, and the task that its checkpoints serve."""

    family: Family
    declared: str  # the architecture of FAMILIES that its config.json is read as
    base: str  # the family's name in the architecture's: Bert, Qwen3
    task: str  # what follows it: ForCausalLM, Model, ForSequenceClassification …

    @property
    def generates(self) -> bool:
        return self.task in GENERATING


def kind_of(architecture: str) -> Kind:
    """Import the class that implements an architecture, and say what its checkpoints are for."""
    task = next((task for task in TASKS if architecture.endswith(task)), "")
    base = architecture.removesuffix(task)
    declared = architecture
    if base not in ENCODERS and task in DECODER_TASKS:
        base = base.removesuffix("Text")  # Gemma3Text, the part for text of Gemma3
        heads = (f"{base}{head}" for head in GENERATING)
        declared = next((name for name in heads if name in FAMILIES), architecture)
    return Kind(family_of(declared), declared, base, task)


def family_of(architecture: str) -> Family:
    """Import and return the class that implements an architecture."""
    if architecture not in FAMILIES:
        near = nearest(architecture, FAMILIES, most=3, likeness=0.3) or sorted(FAMILIES)[:8]
        raise ConfigurationError(
            f"config: architectures: {quote(architecture)} is not supported; of the "
            f"{len(FAMILIES)} that are, the nearest are: {', '.join(near)}"
        )
    module, name = FAMILIES[architecture]
    family: Family = getattr(import_module(f"octavo.models.{module}"), name)
    return family
