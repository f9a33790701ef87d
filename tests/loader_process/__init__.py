"""Tests of the loader process: what it reads, what it refuses, and who may not be hurt."""
