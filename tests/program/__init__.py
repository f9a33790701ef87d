"""Tests of recording and rewriting listings."""
