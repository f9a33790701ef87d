"""The engines to compare with, all driven through one interface."""
