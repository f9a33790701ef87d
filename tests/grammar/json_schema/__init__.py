"""Tests of the simplification of JSON schemas."""
