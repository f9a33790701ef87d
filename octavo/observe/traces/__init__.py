"""Traces of requests: the spans of each, and their way to a collector of OpenTelemetry."""
