"""The stream of what a server is doing now, made once for all who watch it."""
