"""Tests of requests whose engine is killed."""
