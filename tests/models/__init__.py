"""Families against their reference implementation, and how models are bound."""
