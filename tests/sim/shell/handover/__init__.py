"""Worlds with several engines of one keeper of requests: one continues what another began."""
