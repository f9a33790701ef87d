"""Octavo: an engine that serves large language models."""
