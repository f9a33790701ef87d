"""Families against their reference implementation, what configurations say, and binding."""
