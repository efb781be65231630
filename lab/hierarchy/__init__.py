"""The fastest hierarchy of drafts, planned and measured."""
