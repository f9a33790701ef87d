"""The heart of the engine: which sequence computes which tokens next, and in which KV blocks.

Pure standard-library Python and a pure function of (state, events, now): no clock, no
randomness, no I/O, no threads. `tests/sim` drives it through thousands of hostile worlds a minute.

Reading order: config, sampling_params, request, sequence, plan, block_pool, kv_manager, limits,
queue, door, flight, outcome, stats, roster, scheduler, engine, check.
"""
