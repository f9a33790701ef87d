"""Measurements of the native engine's kernels by themselves."""
