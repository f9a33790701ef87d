"""Questions about a text, each answered by the probabilities of a few labels."""
