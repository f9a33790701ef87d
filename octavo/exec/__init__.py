"""Carries plans to workers and results back."""
