"""Traces of decodes: recorded (`recording`), as text (`render`) or HTML (`page`)."""
