"""Tests of blocks, block tables and the sharing of prefixes."""
