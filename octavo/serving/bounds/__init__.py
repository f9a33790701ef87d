"""Bounds of a request's answer, of its biases, and of the work that is done for it at once."""
