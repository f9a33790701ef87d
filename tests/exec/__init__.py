"""Tests of what carries plans to workers."""
