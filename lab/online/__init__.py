"""The gain in alpha of a draft that learns while serving requests."""
