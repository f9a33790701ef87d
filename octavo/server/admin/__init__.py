"""The routes for operators, on a unix socket that clients cannot reach."""
