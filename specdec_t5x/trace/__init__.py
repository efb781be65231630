"""Records decodes (`recording`), drawn in a terminal (`render`) or as a page (`page`)."""
