"""Worlds with two engines for one keeper of requests, in which one continues what another began."""
