"""Worlds of engines that are groups of processes: ranks, stages, and nodes that add up."""
