"""What a restart needs of other processes: of systemd, and of the server before this one."""
