"""The torch backend: the meaning of every operation, and the oracle for all others."""
