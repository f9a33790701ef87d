"""Tests of the executors, which carry plans to the runner."""
