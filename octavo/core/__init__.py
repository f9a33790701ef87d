"""The core decides: which sequences run, which blocks they own, what each step computes."""
