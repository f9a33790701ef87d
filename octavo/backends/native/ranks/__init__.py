"""Ranks of the native engine: several processes, to whose programs a rank is what a thread is."""
