"""vLLM's own routes: tokens in and out, rendering, batches, the state of the server."""
