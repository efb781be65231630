"""`make demo`: a target and a draft from nothing, and what speculation gains.

`corpora` writes synthetic texts, `tasks` gives them to seqio, `vocabulary` is theirs.
`recipe` says what a demo pair is made of, `making` makes what is missing, `commands`
runs the two jobs as a user would, `comparison` measures, `__main__` is the command.
"""
