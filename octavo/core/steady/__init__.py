"""Steps in which only the counters of sequences change, as most steps of a busy engine."""
