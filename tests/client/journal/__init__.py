"""Tests of the client that keeps requests."""
