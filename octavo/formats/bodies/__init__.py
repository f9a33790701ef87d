"""The ways in which one call is written: each can be read, written and made a grammar of."""
