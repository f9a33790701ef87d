"""What a server knows of the form of its answers: formats of calls and reasoning, ids of calls."""
