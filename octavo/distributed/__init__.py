"""The ranks that share a model."""
