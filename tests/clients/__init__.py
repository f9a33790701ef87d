"""Tests with other projects' clients."""
