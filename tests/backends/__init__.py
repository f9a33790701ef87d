"""Tests of what runs models."""
