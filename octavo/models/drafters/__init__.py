"""Drafters that read the hidden states of the model for which they draft."""
