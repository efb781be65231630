"""The costs and gains of a draft in another process."""
