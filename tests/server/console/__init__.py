"""Tests of the page at `/`: who gets it, and what it may do."""
