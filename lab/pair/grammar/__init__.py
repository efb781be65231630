"""A synchronous grammar of English and German, for a machine without data or network.

No sentence is real. Measurements on the sentences are demonstrations, not results on
WMT.
"""
