"""Stages of the native engine: processes that compute some layers each, one after the other."""
