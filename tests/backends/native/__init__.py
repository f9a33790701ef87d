"""Tests of the native CPU engine."""
