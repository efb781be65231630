"""The best sublayers to skip if a target drafts for itself."""
