"""How much alpha a draft gains that learns while it serves."""
