"""Engines on other machines: the links to them, and who starts them there."""
