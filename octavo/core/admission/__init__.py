"""How waiting sequences get to run: the shares of owners, and who is preempted for whom."""
