"""The speculative loop. Read `step` first: its verbs are draft, score, verify, commit.

Then `generate`, the loop around them, `state`, what it carries, and `decoders`, which
puts networks, drafter, rule and policy together. What each part has to have: `drafter`
and `context`, `policy`, `core.types.Rule`. `baseline` is plain decoding, `cost_aware`
the policy where none is named, `widths` narrower blocks, `batching` more inputs than
rows.
"""
