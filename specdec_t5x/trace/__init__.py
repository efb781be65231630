"""Traces of decodes: recorded (`recording`), as text, SVG or HTML (`render`)."""
