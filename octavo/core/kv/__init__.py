"""The KV cache as the core sees it: block tables, the prefix cache, and the pool of memory.

Reading order: block_pool, digests, policies, manager, page_pool, check.
"""
