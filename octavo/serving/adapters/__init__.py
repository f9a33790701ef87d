"""The adapters (LoRA) of one server: their names, how a request selects one, how they change."""
