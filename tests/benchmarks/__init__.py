"""Tests of the programs that measure: that what they say is so."""
