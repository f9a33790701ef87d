"""Measures the engine from inside, where a step's time goes, and a server from outside."""
