"""Tests of tokenizers and templates, most of them against reference implementations."""
