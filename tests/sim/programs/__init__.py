"""Worlds in which a second model computes over the same slots, and proposes tokens."""
