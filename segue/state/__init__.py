"""State components of a model: what they are, where they lie, who owns their units."""
