"""Tests of octavo.loader."""
