"""Beam search over HTTP: the steps of the search are requests to the engine."""
