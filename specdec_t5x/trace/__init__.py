"""One decode, recorded (`recording`), drawn in a terminal (`render`), or as a page."""
