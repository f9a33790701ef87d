"""Tests of tools over all dialects, for models whose template knows none."""
