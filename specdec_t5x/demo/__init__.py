"""`make demo`: a target and a draft from nothing, and what speculation gains.

`corpora` writes synthetic texts, `tasks` gives them to seqio, `vocabulary` is theirs.
`recipe` says what a demo pair is made of, `making` makes what is missing,
`comparison` measures, `__main__` is the command.
"""
