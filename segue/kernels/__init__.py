"""The operations on state, each with a plain torch reference that defines its result."""
