"""Vocabularies: what turns texts into token ids and back, for gin and for Python."""
