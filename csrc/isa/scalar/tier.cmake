# Plain C++ for every processor: the reference, and what other architectures run.
set(tier_order 0)
set(tier_processors ".*")
set(tier_flags "")
set(tier_folders scalar no_bf16 no_tiles)
