"""Rounding or a bug? `python -m specdec_t5x.diagnose` compares two greedy decodes.

`recording` decodes both ways and keeps the logits that decided, `divergence` finds
where the outputs part and judges why, `__main__` is the command.
"""
