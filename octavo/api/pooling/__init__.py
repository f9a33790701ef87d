"""Prompts as vectors, classes and scores: parameters, inputs, tasks and results."""
