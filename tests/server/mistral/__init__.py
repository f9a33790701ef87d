"""Tests of the route that Mistral's API has of its own."""
