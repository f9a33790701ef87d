"""The time of steps: what each kind of work in them takes, learned while the engine runs."""
