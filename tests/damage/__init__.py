"""Damage to the files of models: every mutant either loads, or is refused in one clear line."""
