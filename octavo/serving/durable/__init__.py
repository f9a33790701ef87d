"""Durable requests over HTTP: numbered streams, and answers that outlive their connection."""
