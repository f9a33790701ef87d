"""Executors: how plans reach the runner and results come back."""
