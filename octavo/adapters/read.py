"""Reading of an adapter, whichever of the two forms its files have."""

from __future__ import annotations

from octavo.adapters.gguf import read_gguf_adapter
from octavo.adapters.module_choice import ORIGIN
from octavo.adapters.pairs import Limits
from octavo.adapters.peft import read_peft
from octavo.adapters.targets import Targets
from octavo.backends.adapter_weights import AdapterWeights
from octavo.layers import Model
from octavo.loader.checkpoint import Checkpoint

PEFT_FILE, GGUF_FILE = "adapter_model.safetensors", "adapter.gguf"
SETTINGS_FILE = ORIGIN


class AdapterReader:
    """A reader of the adapters of one model; make it before the model is divided over ranks."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self._spec = model.spec
        self._limits = limits
        self.targets = Targets(model)

    def read(self, checkpoint: Checkpoint, settings: bytes) -> AdapterWeights:
        """Read an adapter, whose settings stand in a file beside it unless it is a GGUF file.

        Raise a CheckpointError for one that is damaged, that is not this model's, or that asks for
        what is not supported.
        """
        if checkpoint.path.suffix == ".gguf":
            return read_gguf_adapter(checkpoint, self._spec, self.targets, self._limits)
        return read_peft(checkpoint, settings, self.targets, self._limits)
