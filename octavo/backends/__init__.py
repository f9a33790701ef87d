"""What runs a model: each backend gives the layers' operations a meaning on its hardware."""
