"""Tests of how storage, sharding and stacking compose."""
