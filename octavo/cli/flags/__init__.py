"""What the command line understands beside its own flags: dotted keys, files, other servers'."""
