"""Tests of published KV events: their form, their readers, and what these know."""
