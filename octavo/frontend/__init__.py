"""Text on one side, tokens on the other: what stands between a client's words and the core."""
