"""Adapters (LoRA): how their files become what a backend adds to a model's projections."""
