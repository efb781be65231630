"""One decode, iteration by iteration (`iterations`), as text and image (`render`)."""
