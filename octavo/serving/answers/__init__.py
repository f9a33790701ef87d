"""What a server knows of the form of its answers: formats, ids of calls, the base of writers."""
