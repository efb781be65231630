"""Vocabularies turn texts into token ids and back, for gin and for Python."""
