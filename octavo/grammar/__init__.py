"""Grammars: which tokens a text in a given shape may continue with."""
