"""Tests of the dialect of text-generation-inference."""
