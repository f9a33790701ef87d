"""Worlds whose requests have predictions: right, wrong, or right up to where they harm most."""
