"""Simulated worlds of the front end: a virtual event loop, ASGI, the server's shell."""
