"""Tests of the exchange between ranks."""
