"""A draft in another process, over gRPC with messages of msgpack.

`wire` has the messages, `drafting` and `server` are the draft's side, and `client` is
the target's side. `python -m specdec_t5x.contrib.link` starts the draft's process.
"""
