"""The native CPU engine."""
