"""Rounding or a bug? `python -m specdec_t5x.diagnose` compares two greedy decodes.

`recording` decodes both ways and keeps the logits that chose each token, `divergence`
judges the first difference of each pair of outputs, and `__main__` is the command.
"""
