"""Tests of the traces of a server's requests."""
