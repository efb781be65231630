"""A draft in another process: two processes, gRPC, and messages of msgpack.

`wire` has the messages, `drafting` and `server` the process that drafts, `client` the
side of the target; `python -m specdec_t5x.contrib.link` starts the draft's process.
"""
