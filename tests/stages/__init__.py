"""Stages as real processes: the same bits as of one process, their deaths, and their frames."""
