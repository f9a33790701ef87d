"""Tests of the confinement of processes."""
