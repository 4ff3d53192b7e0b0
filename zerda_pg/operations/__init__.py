"""The store's operations, each written once as a generator of steps."""
