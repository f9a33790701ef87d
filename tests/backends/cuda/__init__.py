"""Tests of the CUDA backend on the fake device."""
