"""A server in a process of its own, and the clients of soak, overload and restart runs."""
