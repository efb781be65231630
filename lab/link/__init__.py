"""What a draft in another process costs and gains."""
