"""Tests of how the time of steps decides what drafts are sent."""
