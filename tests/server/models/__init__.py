"""Tests of a server with several models."""
