"""Tests of the reference sampler."""
