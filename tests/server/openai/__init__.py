"""Tests of OpenAI's routes."""
