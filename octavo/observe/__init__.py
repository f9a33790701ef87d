"""Observation: memory, logs, metrics, where a request's time went, what limits the server."""
