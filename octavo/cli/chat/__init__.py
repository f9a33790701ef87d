"""What `octavo run` consists of: the model that it asks, and conversations in the terminal."""
