"""Training of a drafter for a model, from text that the model itself wrote."""
