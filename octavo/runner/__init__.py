"""Turns plans into batches for a backend and its output into results, over arrays by slot."""
