"""Tests of what all answers have in common."""
