"""Clients that ask for answers in a shape, and the server that they use."""
