"""Nouns, adjectives, names and places of the synthetic corpus, in both languages.

A noun's classes say what a verb may do with it: h human, a animal, v vehicle, e event,
g goods, r read, w written, f food, d drink, o opened, x repaired, s painted (wall),
i painted (picture), q explained, k put upright (stellen), l laid (legen), c a surface
or container, u not counted.
"""

from typing import NamedTuple


class Noun(NamedTuple):
  """A noun in both languages.

  Attributes:
    en: English singular.
    en_plural: English plural.
    gender: m, f or n.
    de: German nominative singular.
    de_plural: German nominative plural.
    oblique: German accusative and dative singular (differs in weak nouns only).
    genitive: German genitive singular.
    classes: letters, see above.
    feminine: the noun for a woman, where English has one word for both.
  """

  en: str
  en_plural: str
  gender: str
  de: str
  de_plural: str
  oblique: str
  genitive: str
  classes: frozenset
  feminine: "Noun | None" = None


class Adjective(NamedTuple):
  """An adjective; `stem` takes the endings, `more` are the comparatives."""

  en: str
  de: str
  stem: str
  more: tuple[str, str] | None = None


class Name(NamedTuple):
  """A person's name; the gender is the person's."""

  en: str
  de: str
  gender: str
  oblique: str


class Place(NamedTuple):
  """A place noun with its prepositions for being there and going there."""

  noun: Noun
  en_at: str
  de_at: str
  en_to: str
  de_to: str


class Region(NamedTuple):
  """A city or country, with the German for in, to and from it."""

  en: str
  de: str
  at: str
  to: str
  of: str


_ROLES = """
teacher Lehrer Lehrer s Lehrerin | doctor Arzt Ärzte es Ärztin
student Student Studenten -en Studentin | neighbour Nachbar Nachbarn -n Nachbarin
colleague Kollege Kollegen -n Kollegin | baker Bäcker Bäcker s Bäckerin
lawyer Anwalt Anwälte s Anwältin | singer Sänger Sänger s Sängerin
journalist Journalist Journalisten -en Journalistin | farmer Bauer Bauern -n Bäuerin
engineer Ingenieur Ingenieure s Ingenieurin | cook Koch Köche s Köchin
boss Chef Chefs s Chefin | driver Fahrer Fahrer s Fahrerin
customer Kunde Kunden -n Kundin | tourist Tourist Touristen -en Touristin
police_officer Polizist Polizisten -en Polizistin
"""
_NOUNS = """
man men m Mann Männer es h | woman women f Frau Frauen 0 h
child children n Kind Kinder es h,j
girl girls n Mädchen Mädchen s h,j | boy boys m Junge Jungen -n h
guest guests m Gast Gäste es h,j
brother brothers m Bruder Brüder s h,y | sister sisters f Schwester Schwestern 0 h,y
mother mothers f Mutter Mütter 0 h,y | father fathers m Vater Väter s h,y
daughter daughters f Tochter Töchter 0 h,y | son sons m Sohn Söhne es h,y
uncle uncles m Onkel Onkel s h,y | aunt aunts f Tante Tanten 0 h,y
grandmother grandmothers f Großmutter Großmütter 0 h,y
grandfather grandfathers m Großvater Großväter s h,y
dog dogs m Hund Hunde es a | cat cats f Katze Katzen 0 a
horse horses n Pferd Pferde es a
bird birds m Vogel Vögel s a
train trains m Zug Züge es v,b | bus buses m Bus Busse ses v,b
ship ships n Schiff Schiffe es v,b
plane planes n Flugzeug Flugzeuge s v,b
meeting meetings f Besprechung Besprechungen 0 e | course courses m Kurs Kurse es e
competition competitions m Wettbewerb Wettbewerbe s e
concert concerts n Konzert Konzerte s e
wedding weddings f Hochzeit Hochzeiten 0 e | party parties f Feier Feiern 0 e
conference conferences f Konferenz Konferenzen 0 e | exam exams f Prüfung Prüfungen 0 e
game games n Spiel Spiele s e | trip trips m Ausflug Ausflüge s e
book books n Buch Bücher es g,r,w,l | letter letters m Brief Briefe s r,w,l,g
newspaper newspapers f Zeitung Zeitungen 0 g,r,l
report reports m Bericht Berichte s r,w
contract contracts m Vertrag Verträge s r,w,n | bill bills f Rechnung Rechnungen 0 r,w
story stories f Geschichte Geschichten 0 r,w | poem poems n Gedicht Gedichte s r,w
email emails f E-Mail E-Mails 0 r,w | novel novels m Roman Romane s g,r,w,l
key keys m Schlüssel Schlüssel s g,l | car cars n Auto Autos s g,x,b
bicycle bicycles n Fahrrad Fahrräder s g,x,b | picture pictures n Bild Bilder es g,i
lamp lamps f Lampe Lampen 0 g,x,k | bottle bottles f Flasche Flaschen 0 k,o
coat coats m Mantel Mäntel s g,l | shirt shirts n Hemd Hemden es g,l
bag bags f Tasche Taschen 0 g,o,c | computer computers m Computer Computer s g,x
telephone telephones n Telefon Telefone s g,x | clock clocks f Uhr Uhren 0 g,x
ring rings m Ring Ringe es g,l | camera cameras f Kamera Kameras 0 g,x
present presents n Geschenk Geschenke s g
umbrella umbrellas m Regenschirm Regenschirme s g
ticket tickets f Fahrkarte Fahrkarten 0 g,l | map maps f Landkarte Landkarten 0 g,l
guitar guitars f Gitarre Gitarren 0 g,x | machine machines f Maschine Maschinen 0 g,x
radio radios n Radio Radios s g,x | knife knives n Messer Messer s g,l
vase vases f Vase Vasen 0 g,k | glass glasses n Glas Gläser es k
plate plates m Teller Teller s g,k | suitcase suitcases m Koffer Koffer s g,o,k
box boxes f Kiste Kisten 0 o,c,k | door doors f Tür Türen 0 o,s
window windows n Fenster Fenster s o,s | wall walls f Wand Wände 0 s
fence fences m Zaun Zäune s s | table tables m Tisch Tische s c,g
chair chairs m Stuhl Stühle s g | shelf shelves n Regal Regale s c,g
cupboard cupboards m Schrank Schränke s c,g
cake cakes m Kuchen Kuchen s f,g | apple apples m Apfel Äpfel s f,g
fish fish m Fisch Fische es f,g,u
bread bread n Brot Brote s f,g,u | soup soup f Suppe Suppen 0 f,u
meat meat n Fleisch Fleische s f,g,u
sausage sausages f Wurst Würste 0 f,g | egg eggs n Ei Eier s f,g
coffee coffee m Kaffee Kaffees s d,u | tea tea m Tee Tees s d,u
milk milk f Milch Milch 0 d,u
wine wine m Wein Weine s d,u | beer beer n Bier Biere s d,u
problem problems n Problem Probleme s q | plan plans m Plan Pläne es q
decision decisions f Entscheidung Entscheidungen 0 q | rule rules f Regel Regeln 0 q
result results n Ergebnis Ergebnisse ses q | question questions f Frage Fragen 0 q
mistake mistakes m Fehler Fehler s q | film films m Film Filme s t
song songs n Lied Lieder es t,w
weather weather n Wetter Wetter s u
"""
_PLACES = """
office n Büro Büros s | in in to in
garden m Garten Gärten s | in in into in
kitchen f Küche Küchen 0 | in in into in
station m Bahnhof Bahnhöfe s | at an to zu
market m Markt Märkte es | at auf to auf
park m Park Parks s | in in to in
hospital n Krankenhaus Krankenhäuser es | in in to in
library f Bibliothek Bibliotheken 0 | in in to in
museum n Museum Museen s | in in to in
restaurant n Restaurant Restaurants s | in in to in
theatre n Theater Theater s | at in to in
hotel n Hotel Hotels s | in in to in
church f Kirche Kirchen 0 | in in to in
village n Dorf Dörfer es | in in to in
forest m Wald Wälder es | in in into in
airport m Flughafen Flughäfen s | at an to zu
beach m Strand Strände es | on an to an
cinema n Kino Kinos s | at in to in
town_hall n Rathaus Rathäuser es | in in to in
lake m See Seen s | at an to an
factory f Fabrik Fabriken 0 | in in to in
school f Schule Schulen 0 | at in to in
"""
_ADJECTIVES = {
  "h": (
    "old alt älter | young jung jünger | tired müde müder:tired | famous berühmt "
    "berühmter:more_famous | rich reich reicher | poor arm ärmer | clever klug klüger "
    "| friendly freundlich freundlicher:friendlier | strict streng strenger | "
    "hungry hungrig - | ill krank - | nervous nervös nervöser:more_nervous | "
    "careful vorsichtig vorsichtiger:more_careful | happy glücklich glücklicher:happier"
  ),
  "a": "old alt älter | young jung jünger | small klein kleiner | big groß größer | "
  "hungry hungrig - | tired müde - | black schwarz - | white weiß - | brown braun -",
  "g": "new neu - | old alt älter | expensive teuer teurer:more_expensive | cheap "
  "billig billiger | small klein kleiner | big groß größer | heavy schwer "
  "schwerer:heavier | red rot - | blue blau - | green grün - | black schwarz - | "
  "beautiful schön schöner:more_beautiful",
  "q": "important wichtig wichtiger:more_important | difficult schwierig "
  "schwieriger:more_difficult | new neu - | simple einfach einfacher | strange "
  "seltsam seltsamer",
  "r": "long lang länger | short kurz kürzer | interesting interessant "
  "interessanter:more_interesting | boring langweilig langweiliger:more_boring | "
  "important wichtig wichtiger:more_important | new neu - | sad traurig "
  "trauriger:sadder",
  "f": "fresh frisch frischer | cold kalt kälter | warm warm wärmer | excellent "
  "ausgezeichnet - | cheap billig billiger",
  "e": "long lang - | short kurz - | interesting interessant "
  "interessanter:more_interesting | boring langweilig langweiliger:more_boring | "
  "important wichtig wichtiger:more_important | big groß -",
  "d": "cold kalt - | warm warm - | hot heiß -",
  "u": "bad schlecht - | good gut - | cold kalt - | warm warm - | beautiful schön -",
  "p": "old alt - | new neu - | small klein - | big groß - | quiet ruhig - | "
  "beautiful schön -",
}
_STEMS = {"teuer": "teur", "müde": "müd"}
_FIRST = (
  "f Anna Maria Julia Laura Sophie Clara Emma Lena Nora Eva; "
  "m Peter Paul Martin David Felix Max Jan Simon Oskar Anton"
)
_LAST = "Weber Fischer Becker Wagner Hoffmann Keller Vogt Brandt Lehmann Winter"
_CITIES = (
  "Berlin Hamburg Dresden Leipzig Bremen Munich:München Cologne:Köln Vienna:Wien "
  "Zurich:Zürich Geneva:Genf London Paris Madrid Rome:Rom Prague:Prag "
  "Warsaw:Warschau Brussels:Brüssel Lisbon:Lissabon Athens:Athen Moscow:Moskau"
)
_COUNTRIES = (
  "Germany:Deutschland France:Frankreich Italy:Italien Spain:Spanien Poland:Polen "
  "Austria:Österreich Norway:Norwegen Japan Canada:Kanada Greece:Griechenland"
)


def _noun(
  en: str, en_plural: str, gender: str, de: str, de_plural: str, ending: str, kinds: str
) -> Noun:
  """Builds a noun; an ending with "-" is a weak noun's, in every case but one."""
  ending = "" if ending == "0" else ending
  weak = ending.removeprefix("-") if ending.startswith("-") else ""
  classes = frozenset(kinds.split(","))
  oblique = de + weak
  genitive = oblique if weak else de + ending
  return Noun(
    en.replace("_", " "), en_plural, gender, de, de_plural, oblique, genitive, classes
  )


def _entries(table: str, separator: str = "|") -> list[list[str]]:
  parts = table.replace("\n", separator).split(separator)
  return [entry.split() for entry in parts if entry.strip()]


def _role(en: str, de: str, de_plural: str, ending: str, feminine: str) -> Noun:
  plural = f"{en}es" if en.endswith("s") else f"{en}s"
  plural = plural.replace("_", " ")
  woman = _noun(en, plural, "f", feminine, f"{feminine}nen", "0", "h")
  man = _noun(en, plural, "m", de, de_plural, ending, "h,z")
  return man._replace(feminine=woman)


def _adjective(en: str, de: str, more: str) -> Adjective:
  more_de, _, more_en = more.partition(":")
  regular = f"{en}r" if en.endswith("e") else f"{en}er"
  if en == "big":
    regular = "bigger"
  elif en == "sad":
    regular = "sadder"
  elif en == "tired":
    more_de = "-"
  comparative = None
  if more_de != "-":
    comparative = ((more_en or regular).replace("_", " "), more_de)
  return Adjective(en, de, _STEMS.get(de, de), comparative)


def _place(entry: str) -> Place:
  noun, prepositions = entry.split("|")
  en, gender, de, de_plural, ending = noun.split()
  plural = {"church": "churches", "beach": "beaches"}.get(en, f"{en}s")
  return Place(
    _noun(en, plural, gender, de, de_plural, ending, "p"), *prepositions.split()
  )


def _names() -> tuple[Name, ...]:
  """First names, and surnames with Mr and Mrs ("Herr" is a weak noun)."""
  names = []
  for group in _FIRST.split("; "):
    gender, *first = group.split()
    names += [Name(n, n, gender, n) for n in first]
  for last in _LAST.split():
    names.append(Name(f"Mr {last}", f"Herr {last}", "m", f"Herrn {last}"))
    names.append(Name(f"Mrs {last}", f"Frau {last}", "f", f"Frau {last}"))
  return tuple(names)


def _regions(table: str) -> tuple[Region, ...]:
  regions = []
  for entry in table.split():
    en, _, de = entry.partition(":")
    de = de or en
    regions.append(Region(en, de, f"in {de}", f"nach {de}", f"aus {de}"))
  return tuple(regions)


NOUNS = tuple(
  [_role(*entry) for entry in _entries(_ROLES)]
  + [_noun(*entry) for entry in _entries(_NOUNS)]
)
BY_ENGLISH = {noun.en: noun for noun in NOUNS}
BY_CLASS = {
  kind: tuple(noun for noun in NOUNS if kind in noun.classes)
  for kind in sorted(set().union(*(noun.classes for noun in NOUNS)))
}
PLACES = tuple(_place(entry) for entry in _PLACES.strip().splitlines())
ADJECTIVES = {
  kind: tuple(_adjective(*entry) for entry in _entries(table))
  for kind, table in _ADJECTIVES.items()
}
NAMES = _names()
CITIES = _regions(_CITIES)
COUNTRIES = (
  *_regions(_COUNTRIES),
  # Countries with an article: the direction is "in" with the accusative.
  Region(
    "Switzerland", "Schweiz", "in der Schweiz", "in die Schweiz", "aus der Schweiz"
  ),
  Region("Turkey", "Türkei", "in der Türkei", "in die Türkei", "aus der Türkei"),
  Region(
    "the Netherlands",
    "Niederlande",
    "in den Niederlanden",
    "in die Niederlande",
    "aus den Niederlanden",
  ),
)
