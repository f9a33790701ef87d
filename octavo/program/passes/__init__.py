"""The passes: each rewrites a listing in place, without changing what it computes."""
