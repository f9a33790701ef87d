"""Tests of a server's place among other processes: systemd, and the servers before and after."""
