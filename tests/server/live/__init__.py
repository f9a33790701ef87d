"""Tests of the live stream: frames, listeners, bounds, tenants."""
