"""The recipe of the pair in `specdec_t5x/demo`: `python -m lab pair`.

`grammar` makes English-German sentences, `texts` writes the sentences and trains the
vocabulary, `recipe` lists the networks, `pack` puts the pair into the package, and
`comparison` measures the pair (`python -m lab demo`).
"""
