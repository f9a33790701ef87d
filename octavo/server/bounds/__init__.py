"""Bounds of a request that concern more than one of its fields, or the model."""
