"""The routes of OpenAI's dialect, with vLLM's additions."""
