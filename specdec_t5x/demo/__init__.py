"""`make demo`: a target and a draft without real data, and the speed-up of speculation.

`corpora` writes synthetic texts, `tasks` registers the texts with seqio, and
`vocabulary` trains the vocabulary. `recipe` lists the parts of a demo pair, `making`
makes missing parts, `comparison` measures, and `__main__` is the command.
"""
