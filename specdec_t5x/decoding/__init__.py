"""The decode.

Read `loop` first: a step is draft, score, verify, commit, and `generate` repeats steps.
`contracts` states what drafters and policies are to the loop, `state` is the
loop's carry, `batching` decodes more inputs than rows, `policies` has draft lengths,
and `decoder` puts everything together.
"""
