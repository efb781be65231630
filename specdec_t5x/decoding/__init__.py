"""The speculative loop.

Read `step` first: draft, score, verify, commit. `generate` is the loop around a step,
and `state` is the loop's carry. `decoders` puts networks, drafter, rule and policy
together. The contracts of these parts are `drafter`, `core.types.Rule` and `policy`.
`baseline` is plain decoding, `cost_aware` the default policy, `widths` the widths of
blocks, and `batching` decodes more inputs than rows.
"""
