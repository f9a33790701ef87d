"""Tests of packed weights that are kept on disk."""
