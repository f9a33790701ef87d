"""The blocks of quantised types, their layouts and decoders; and which type has which."""
