"""The structs of OpenAI's dialect: schema, validation, bounds and wire format in one."""
