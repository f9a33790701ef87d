"""Proposers of drafts, which later steps verify, and the choice of how many drafts to send."""
