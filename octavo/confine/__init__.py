"""Takes from a process what it needs no more: privileges, core dumps, files, network, processes."""
