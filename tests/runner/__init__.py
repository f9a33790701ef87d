"""Tests of the runner: slots, batches, sampling, and that nothing but the request decides."""
