"""Attacks on ranks with devices of their own, which meet at ports of the machine."""
