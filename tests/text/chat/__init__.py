"""Tests of chat messages and templates."""
