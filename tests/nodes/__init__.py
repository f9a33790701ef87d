"""Engines over several nodes: their port and its strangers, equal bits, deaths and cut cables."""
