"""Which sublayers a target had best leave out when it drafts for itself."""
