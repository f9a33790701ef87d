"""The stored formats of safetensors: a file for each method, and what several share."""
