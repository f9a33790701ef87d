"""The commands that measure: an engine from inside, and a server from outside."""
