"""Measures the engine from inside: where a step's time goes."""
