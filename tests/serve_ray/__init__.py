"""The application of Ray Serve: its parts by themselves, and on a cluster of two nodes."""
