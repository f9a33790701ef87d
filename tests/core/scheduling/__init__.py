"""Tests of what the scheduler decides: admission, order, limits, preemption."""
