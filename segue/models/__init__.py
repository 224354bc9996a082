"""One file per model family, and the registry that chooses between them."""
