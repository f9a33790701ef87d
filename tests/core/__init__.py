"""Unit tests of the core; together they must reach every branch of it (`make coverage`)."""
