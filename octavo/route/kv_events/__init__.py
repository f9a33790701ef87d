"""KV events of servers, read as vLLM publishes them: which prefixes each has cached."""
