"""llama.cpp's dialect: its own routes beside those of OpenAI's form."""
