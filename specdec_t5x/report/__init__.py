"""What is shown to people: the trace of a decode, as text and as an image."""
