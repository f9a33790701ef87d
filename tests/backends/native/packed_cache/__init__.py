"""Tests of single kernels: products, attention, packing, sampling, log-probabilities."""
