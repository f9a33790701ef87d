"""Tests of durable requests."""
