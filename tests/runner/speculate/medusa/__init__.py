"""Medusa: files of heads, and the tests of what they draft."""
