"""Tests of the stored formats of weights, and of their division among ranks."""
