"""Backends, which run a model: each implements the operations of the layers for its hardware."""
