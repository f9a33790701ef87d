"""Tests of the readers of adapters, of all families and both forms."""
