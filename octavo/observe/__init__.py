"""What the machine and the engine can tell of themselves: memory, cores, bills, where time went."""
