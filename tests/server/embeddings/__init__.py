"""Tests of the routes that generate nothing."""
