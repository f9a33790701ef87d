"""Engines to compare with, each asked in the same way."""
