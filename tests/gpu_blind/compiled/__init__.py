"""The kernels as they are compiled for cards: what the code claims, and what it computes."""
