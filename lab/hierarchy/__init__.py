"""Which hierarchy of drafts is fastest, planned and measured."""
