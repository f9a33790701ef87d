"""Tests of each pass: a small listing before and after it."""
