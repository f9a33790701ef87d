"""Tests of the request schemas and their decoders."""
