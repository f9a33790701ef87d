"""The commands that look at a running server from a terminal: `top` and `explain`."""
