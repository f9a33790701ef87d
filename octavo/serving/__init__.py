"""What is done with a request in the terms of no dialect: admission, bodies, prompts, answers."""
