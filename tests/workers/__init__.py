"""Tests of the prompt workers: the pool, their limits, and hostile tokenizers and templates."""
