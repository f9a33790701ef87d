"""Agents written with clients, each run in the environment of its client."""
