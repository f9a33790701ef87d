"""Tests of durable requests over HTTP."""
