"""The route that Mistral's API has beside those of OpenAI's form."""
