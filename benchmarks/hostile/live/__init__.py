"""Attacks by listeners of the live stream."""
