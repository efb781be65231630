"""Our own tools, outside the wheel; nothing in `specdec_t5x` imports them."""
