"""The ends of texts that stop tokens do not describe."""
