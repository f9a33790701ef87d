"""An executor of PTX: the code that Triton compiles for a card, run by numpy."""
