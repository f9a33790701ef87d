"""Tests of the engine's process and its memory."""
