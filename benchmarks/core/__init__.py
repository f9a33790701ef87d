"""The worlds, cases and figures of core_step.py."""
