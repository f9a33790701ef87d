"""The ranks of an engine: further processes that compute the same steps with their share of it."""
