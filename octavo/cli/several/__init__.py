"""The part of `octavo serve` that several models need."""
