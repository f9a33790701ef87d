"""Tests of the router: fake servers in this process, whose bytes each test chooses."""
