"""Turns plans into forward passes and logits into tokens, over a struct of arrays by slot."""
