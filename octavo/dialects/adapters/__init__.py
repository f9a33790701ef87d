"""The routes that load and unload adapters, under the paths of vLLM and of SGLang."""
