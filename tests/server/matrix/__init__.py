"""Tests of every request in every way of asking: the product of what else is tested alone."""
