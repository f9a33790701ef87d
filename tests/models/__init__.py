"""Families against their reference implementations."""
