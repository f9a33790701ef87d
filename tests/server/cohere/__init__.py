"""Tests of the dialect of Cohere."""
