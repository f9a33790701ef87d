"""Worlds of engines that are groups of processes: ranks that share steps, and stages."""
