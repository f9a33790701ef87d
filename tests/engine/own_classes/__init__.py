"""Drafts by a class of the operator's own."""
