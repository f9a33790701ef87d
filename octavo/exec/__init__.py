"""Executors, which carry plans to the runner and results back."""
