"""Tests of logs, metrics, memory and the machine."""
