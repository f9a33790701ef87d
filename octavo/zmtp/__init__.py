"""ZeroMQ's protocol for ports that strangers may reach, where all that they can send is bounded."""
