"""Hostile clients of a real server, and the streams of other clients that they must not disturb."""
