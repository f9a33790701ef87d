"""The CUDA backend: the reference's operations on a card. No card has run it yet."""
