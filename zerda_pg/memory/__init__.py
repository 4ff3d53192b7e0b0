"""The seed systems' layers on top of the store."""
