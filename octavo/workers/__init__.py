"""Processes that do what hostile input could make slow: prompts, large bodies, shapes."""
