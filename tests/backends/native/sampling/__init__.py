"""The native sampler against the reference."""
