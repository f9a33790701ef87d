"""Adapters (LoRA) of the native engine."""
