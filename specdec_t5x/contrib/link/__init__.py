"""A draft in another process, over gRPC with messages of msgpack.

`wire` has the messages, `server` is the draft's side, and `drafter` and `client` are
the target's side. `python -m specdec_t5x.contrib.link` starts the draft's process.
"""
