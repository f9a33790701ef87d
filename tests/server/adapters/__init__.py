"""Tests of adapters in the server."""
