"""What may happen to a file."""


def halve(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path):
  contents = bytearray(path.read_bytes())
  contents[len(contents) // 2] ^= 1
  path.write_bytes(contents)
