"""Tests of HTTP: sockets, keys, hostile bodies."""
