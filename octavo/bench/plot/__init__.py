"""Draws measurements as SVG, or a page with it, which need nothing besides."""
