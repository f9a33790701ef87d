"""Programs that measure Octavo; each prints its figures beside the targets they are held to."""
