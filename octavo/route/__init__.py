"""The router: one address in front of several servers with the API of OpenAI."""
