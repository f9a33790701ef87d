"""Tests of what `octavo run` consists of."""
