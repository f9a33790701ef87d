"""Other people's clients."""
