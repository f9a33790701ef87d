"""Attacks on a router, from both sides: hostile clients, and servers that lie."""
