"""Worlds of requests with adapters, whose loading is slow, fails, or is undone meanwhile."""
