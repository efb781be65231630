"""Numbers, years, prices, dates and clock times in English and in German."""


def _words(text: str) -> tuple[str, ...]:
  return tuple(text.split())


_EN_SMALL = _words(
  "zero one two three four five six seven eight nine ten eleven twelve thirteen "
  "fourteen fifteen sixteen seventeen eighteen nineteen"
)
_EN_TENS = _words("- - twenty thirty forty fifty sixty seventy eighty ninety")
_DE_SMALL = _words(
  "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn "
  "vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"
)
_DE_TENS = _words("- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
_EN_ORDINALS = {
  1: "first",
  2: "second",
  3: "third",
  5: "fifth",
  8: "eighth",
  9: "ninth",
  12: "twelfth",
  20: "twentieth",
  30: "thirtieth",
}
_DE_ORDINALS = {1: "ersten", 3: "dritten", 7: "siebten", 8: "achten"}
MONTHS = tuple(
  zip(
    _words(
      "January February March April May June July August September October November "
      "December"
    ),
    _words(
      "Januar Februar März April Mai Juni Juli August September Oktober November "
      "Dezember"
    ),
    strict=True,
  )
)


def english(number: int) -> str:
  """Returns the English words of a number from 0 to 9999 (British: with "and").

  Raises:
    ValueError: the number is out of range.
  """
  _check(number)
  if number < 20:
    return _EN_SMALL[number]
  if number < 100:
    tens, ones = divmod(number, 10)
    return _EN_TENS[tens] + (f"-{_EN_SMALL[ones]}" if ones else "")
  if number < 1000:
    hundreds, rest = divmod(number, 100)
    words = f"{_EN_SMALL[hundreds]} hundred"
    return f"{words} and {english(rest)}" if rest else words
  thousands, rest = divmod(number, 1000)
  words = f"{_EN_SMALL[thousands]} thousand"
  if not rest:
    return words
  return f"{words} {'and ' if rest < 100 else ''}{english(rest)}"


def german(number: int) -> str:
  """Returns the German word of a number from 0 to 9999, written as one.

  Raises:
    ValueError: the number is out of range.
  """
  _check(number)
  if number < 20:
    return _DE_SMALL[number]
  if number < 100:
    tens, ones = divmod(number, 10)
    return (f"{_one(ones)}und" if ones else "") + _DE_TENS[tens]
  unit, word = (100, "hundert") if number < 1000 else (1000, "tausend")
  count, rest = divmod(number, unit)
  return _one(count) + word + (german(rest) if rest else "")


def english_year(year: int) -> str:
  """Returns a year from 1100 to 2099 as it is said, such as "nineteen ninety-eight"."""
  century, rest = divmod(year, 100)
  if century == 20 and rest < 10:
    return english(year)
  if not rest:
    return f"{english(century)} hundred"
  return f"{english(century)} {'oh ' if rest < 10 else ''}{english(rest)}"


def german_year(year: int) -> str:
  """Returns a year as it is said: hundreds until 1999, thousands from 2000."""
  century, rest = divmod(year, 100)
  if not 11 <= century < 20:
    return german(year)
  return f"{german(century)}hundert{german(rest) if rest else ''}"


def ordinals(day: int) -> tuple[str, str]:
  """Returns a day of the month from 1 to 31 as ("twenty-third", "dreiundzwanzigsten").

  The German form is the one after "am".
  """
  tens, ones = divmod(day, 10)
  if day in _EN_ORDINALS:
    english_word = _EN_ORDINALS[day]
  elif day < 20:
    english_word = f"{english(day)}th"
  else:
    english_word = f"{_EN_TENS[tens]}-{ordinals(ones)[0]}"
  german_word = _DE_ORDINALS.get(day, german(day) + ("ten" if day < 20 else "sten"))
  return english_word, german_word


def price(cents: int) -> tuple[str, str]:
  """Returns a price such as ("1,250 euros", "1.250 Euro"), with cents if any."""
  whole, rest = divmod(cents, 100)
  text = f"{whole:,}" + (f".{rest:02d}" if rest else "")
  swapped = text.translate(str.maketrans(",.", ".,"))
  return f"{text} euros", f"{swapped} Euro"


def clock(hour: int, half: bool) -> tuple[str, str]:
  """Returns a time of the day, from one to twelve; German counts to the next hour."""
  if half:
    return f"at half past {english(hour)}", f"um halb {german(hour % 12 + 1)}"
  return f"at {english(hour)} o'clock", f"um {_one(hour)} Uhr"


def _one(number: int) -> str:
  """German "eins" loses its s inside a number and before a noun."""
  return "ein" if number == 1 else german(number)


def _check(number: int) -> None:
  if not 0 <= number <= 9999:
    raise ValueError(f"Expected a number from 0 to 9999, got {number}.")
