"""Methods of the papers beyond the main ways to draft (`specdec_t5x.ways`)."""
