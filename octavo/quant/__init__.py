"""How weights are stored, and how storage, sharding and stacking compose."""
