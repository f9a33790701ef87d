"""Conversations in the terminal, which `octavo run` holds."""
