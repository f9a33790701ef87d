"""Packed weights on disk: written when a model is packed, and mapped at later starts."""
