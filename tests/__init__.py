"""Octavo's tests: units by package, the simulator in sim/, the rules of the tree in tidy/."""
