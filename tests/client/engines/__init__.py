"""Tests of several engines behind one client."""
