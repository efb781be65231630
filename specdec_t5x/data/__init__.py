"""seqio tasks, vocabularies and metrics, and TFDS directories prepared offline."""
