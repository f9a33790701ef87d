"""Attacks on what a server does with adapters: the routes that change them, and their files."""
