"""Stored formats of weights, and how they combine with sharding and stacking."""
