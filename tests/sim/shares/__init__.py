"""What the simulator knows of the owners of requests."""
