"""Tests of what the start of a process costs, in counts and not in times."""
