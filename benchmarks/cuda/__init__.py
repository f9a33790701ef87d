"""Measurements of what the CUDA backend does on the host, without a card."""
