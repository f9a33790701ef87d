"""Durable requests: what is needed to finish a request, on disk and in memory."""
