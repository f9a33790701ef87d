"""Tests of `octavo quantize`: values, files, and runs that were killed."""
