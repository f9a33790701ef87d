"""The requests of a measurement: their lengths, what they share, when they come, their words."""
