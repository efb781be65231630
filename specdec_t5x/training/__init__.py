"""Training networks with optax: supervised, and distilled from a frozen target."""
