"""The scheduler of the engine: which sequence computes which tokens next, in which KV blocks.

The core is a pure function of (state, events, now) and imports only the standard library: no
clock, no randomness, no I/O, no threads. `tests/sim` runs it through thousands of simulated
worlds full of faults each minute.

Reading order: config, stopping.repetition, sampling_params, request, sequence, plan,
kv.block_pool, kv.policies, kv.manager, kv.page_pool, limits, queue, admit, plan_draft, outcome,
stats, lifecycle, scheduler, apply, engine, check, snapshot.
"""
