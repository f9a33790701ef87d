"""Stored formats of weights: how their tensors become rows, and how ranks divide the rows."""
