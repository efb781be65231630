"""Verbs of the synthetic corpus in both languages, with what they combine with."""

from typing import NamedTuple


class Preposition(NamedTuple):
  """A verb's prepositional object: both prepositions and the German case."""

  en: str
  de: str
  case: str


class Verb(NamedTuple):
  """A verb in both languages.

  Attributes:
    en: English base form, third person, past, participle and -ing form.
    infinitive: German infinitive without its separable prefix.
    prefix: the separable prefix, or "".
    third: German third person singular without the prefix.
    participle: German past participle, prefix included.
    auxiliary: "haben" or "sein".
    subject: noun classes that may be the subject.
    accusative: noun classes of the direct object, or "".
    dative: noun classes of the indirect object, or "".
    preposition: of the prepositional object, or None.
    prepositional: noun classes of the prepositional object.
    marks: s stative (no progressive), r reflexive, t English "to" before the
      indirect object, l takes a place, m takes a manner, n new home (a direction
      that is a city), w a way to go, x set down (a surface), g "gefallen": roles swap,
      i no time adverbial, p also used with "since".
    manners: the manners that suit it, by their English words.
  """

  en: tuple[str, str, str, str, str]
  infinitive: str
  prefix: str
  third: str
  participle: str
  auxiliary: str
  subject: str
  accusative: str
  dative: str
  preposition: Preposition | None
  prepositional: str
  marks: str
  manners: tuple[str, ...]


# English | German (prefix/infinitive third participle, + for sein) | subject |
# objects (a:classes, d:classes, preposition:preposition:case:classes) | marks | manners
_TABLE = """
buy bought|kaufen kauft gekauft|h|a:g|l|quickly secretly
sell sold|verkaufen verkauft verkauft|h|a:g|l|quickly secretly
find found|finden findet gefunden|h|a:g|l|quickly
lose lost|verlieren verliert verloren|h|a:g|l|
read read|lesen liest gelesen|h|a:r|l|quickly carefully slowly
write wrote written|schreiben schreibt geschrieben|h|a:w|l|quickly carefully
repair|reparieren repariert repariert|h|a:x|l|quickly carefully patiently
look_for|suchen sucht gesucht|h|a:ag|l|patiently secretly
see saw seen|sehen sieht gesehen|h|a:hag|ls|
open|auf/machen macht aufgemacht|h|a:o|m|quickly slowly carefully quietly
close|zu/machen macht zugemacht|h|a:o|m|quickly slowly carefully quietly
sign|unterschreiben unterschreibt unterschrieben|h|a:n|l|quickly secretly
eat ate eaten|essen isst gegessen|h|a:f|l|quickly slowly
eat ate eaten|fressen frisst gefressen|a|a:f|l|quickly slowly
drink drank drunk|trinken trinkt getrunken|h|a:d|l|quickly slowly
paint|malen malt gemalt|h|a:i|l|carefully slowly
paint|streichen streicht gestrichen|h|a:s|m|carefully slowly quickly
visit|besuchen besucht besucht|h|a:h||secretly
call|an/rufen ruft angerufen|h|a:h||
pick_up|ab/holen holt abgeholt|h|a:hg|l|
invite|ein/laden lädt eingeladen|h|a:h||
meet met|treffen trifft getroffen|h|a:h|ls|
get_to_know got got|kennen/lernen lernt kennengelernt|h|a:h|ls|
prepare|vor/bereiten bereitet vorbereitet|h|a:e|l|carefully patiently
know knew known|kennen kennt gekannt|h|a:h|sip|
thank|danken dankt gedankt|h|d:h||
help|helfen hilft geholfen|h|d:h|l|patiently
trust|vertrauen vertraut vertraut|h|d:h|si|
congratulate|gratulieren gratuliert gratuliert|h|d:h||
answer|antworten antwortet geantwortet|h|d:h|m|quickly quietly politely
listen_to|zu/hören hört zugehört|h|d:h|l|patiently
watch|zu/sehen sieht zugesehen|h|d:h|l|quietly
give gave given|geben gibt gegeben|h|d:h,a:gr|l|secretly
show showed shown|zeigen zeigt gezeigt|h|d:h,a:gri|l|patiently
send sent|schicken schickt geschickt|h|d:h,a:g||
bring brought|bringen bringt gebracht|h|d:h,a:fgd||quickly
lend lent|leihen leiht geliehen|h|d:h,a:x||
return|zurück/geben gibt zurückgegeben|h|d:h,a:g|t|
explain|erklären erklärt erklärt|h|d:h,a:q|tl|patiently slowly quietly
recommend|empfehlen empfiehlt empfohlen|h|d:h,a:gr|t|
read_out read|vor/lesen liest vorgelesen|h|d:h,a:r|tl|slowly quietly
wait|warten wartet gewartet|h|for:auf:A:hv|lp|patiently quietly
think thought|denken denkt gedacht|h|of:an:A:he||
talk|sprechen spricht gesprochen|h|to:mit:D:h|lm|quietly politely
complain|beschweren beschwert beschwert|h|about:über:A:gv|r|politely
dream dreamt|träumen träumt geträumt|h|of:von:D:eg||
take_care took taken|kümmern kümmert gekümmert|h|of:um:A:hae|r|patiently
look_after|auf/passen passt aufgepasst|h|:auf:A:ha||
look_forward|freuen freut gefreut|h|to:auf:A:e|r|
apologise|entschuldigen entschuldigt entschuldigt|h|to:bei:D:h|r|politely quietly
take_part took taken|teil/nehmen nimmt teilgenommen|h|in:an:D:e||
talk|sprechen spricht gesprochen|h|about:über:A:qe|l|quietly
laugh|lachen lacht gelacht|h|at:über:A:qw||secretly quietly
arrive|an/kommen kommt angekommen+|hv||l|
depart|ab/fahren fährt abgefahren+|v|||
get_up got got|auf/stehen steht aufgestanden+|h||m|slowly quickly
fall_asleep fell fallen|ein/schlafen schläft eingeschlafen+|ha||l|quickly
take_place took taken|statt/finden findet stattgefunden|e||l|
begin began begun|an/fangen fängt angefangen|e||l|
work|arbeiten arbeitet gearbeitet|h||lpm|carefully quickly quietly patiently
sleep slept|schlafen schläft geschlafen|ha||lm|
dance|tanzen tanzt getanzt|h||lm|happily
sing sang sung|singen singt gesungen|h||lm|quietly happily
live|wohnen wohnt gewohnt|h||Hsp|
stay|bleiben bleibt geblieben+|h||H|
travel|reisen reist gereist+|h||n|
move|um/ziehen zieht umgezogen+|h||n|
drive drove driven|fahren fährt gefahren+|h||n|quickly slowly
fly flew flown|fliegen fliegt geflogen+|h||n|
go went gone|gehen geht gegangen+|h||w|quickly slowly
run ran run|laufen läuft gelaufen+|ha||w|quickly
put put|legen legt gelegt|h|a:l|x|carefully quickly
put put|stellen stellt gestellt|h|a:k|x|carefully quickly
like|gefallen gefällt gefallen|h|a:gti|gsi|
need|brauchen braucht gebraucht|h|a:gx|si|
own|besitzen besitzt besessen|h|a:gx|si|
say said|sagen sagt gesagt|h||C|
believe|glauben glaubt geglaubt|h||Cs|
know knew known|wissen weiß gewusst|h||CWs|
hope|hoffen hofft gehofft|h||Cs|
hear heard|hören hört gehört|h||Cs|
report|berichten berichtet berichtet|h||C|
claim|behaupten behauptet behauptet|h||C|
explain|erklären erklärt erklärt|h||CW|
notice|bemerken bemerkt bemerkt|h||Cs|
forget forgot forgotten|vergessen vergisst vergessen|h||CWZs|
wonder|fragen fragt gefragt|h||WOrs|
ask|fragen fragt gefragt|h||WO|
try|versuchen versucht versucht|h||Z|
promise|versprechen verspricht versprochen|h||Z|
plan|planen plant geplant|h||Z|
rain|regnen regnet geregnet|:||I|
snow|schneien schneit geschneit|:||I|
"""
MANNERS = {
  "quickly": "schnell",
  "slowly": "langsam",
  "carefully": "sorgfältig",
  "quietly": "leise",
  "patiently": "geduldig",
  "secretly": "heimlich",
  "politely": "höflich",
  "happily": "fröhlich",
}
_DOUBLED = {
  "get": "getting",
  "put": "putting",
  "plan": "planning",
  "run": "running",
  "forget": "forgetting",
  "begin": "beginning",
  "travel": "travelling",
}
_PAST = {"stay": "stayed", "plan": "planned", "travel": "travelled"}


def _english(words: list[str]) -> tuple[str, str, str, str, str]:
  """Builds the five forms from the base, the irregular past and the participle."""
  base, *irregular = words
  base, _, particle = base.partition("_")
  particle = f" {particle}".replace("_", " ") if particle else ""
  if base.endswith(("s", "sh", "ch", "x", "o")):
    third = f"{base}es"
  elif base.endswith("y") and base[-2] not in "aeou":
    third = f"{base[:-1]}ies"
  else:
    third = f"{base}s"
  regular = third.removesuffix("s") + "d" if third.endswith("es") else f"{base}ed"
  past = irregular[0] if irregular else _PAST.get(base, regular)
  participle = irregular[1] if len(irregular) > 1 else past
  stem = base[:-1] if base.endswith("e") and not base.endswith("ee") else base
  gerund = _DOUBLED.get(base, f"{stem}ing")
  return tuple(f"{form}{particle}" for form in (base, third, past, participle, gerund))


def _verb(line: str) -> Verb:
  en, de, subject, objects, marks, manners = line.split("|")
  infinitive, third, participle = de.split()
  prefix, _, infinitive = infinitive.rpartition("/")
  slots = {"a": "", "d": ""}
  preposition, prepositional = None, ""
  for slot in filter(None, objects.split(",")):
    kind, *rest = slot.split(":")
    if len(rest) == 1:
      slots[kind] = rest[0]
    else:
      preposition, prepositional = Preposition(kind, *rest[:2]), rest[2]
  return Verb(
    _english(en.split()),
    infinitive,
    prefix,
    third,
    participle.removesuffix("+"),
    "sein" if participle.endswith("+") else "haben",
    subject,
    slots["a"],
    slots["d"],
    preposition,
    prepositional,
    marks,
    tuple(manners.split()),
  )


VERBS = tuple(_verb(line) for line in _TABLE.strip().splitlines())


def find(infinitive: str, english: str = "") -> Verb:
  """Returns the first verb with this German infinitive (prefix included).

  Raises:
    ValueError: there is none.
  """
  for verb in VERBS:
    if verb.prefix + verb.infinitive == infinitive and english in ("", verb.en[0]):
      return verb
  raise ValueError(f"No verb {infinitive!r} ({english!r}) in the lexicon.")
