"""Triton kernels of the CUDA backend, each with the function that launches it."""
