"""The `top` command: the live stream of a server, in a terminal."""
