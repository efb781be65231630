"""One decode, recorded (`recording`), told (`iterations`), drawn (`render`, `page`)."""
