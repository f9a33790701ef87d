"""Tests of `octavo top`."""
