"""Tests of what the machine and the engine tell of themselves."""
