"""Settings of the processes that compute: several engines, those of other servers, and ranks."""
