"""Sentences of the invented news: for each kind of event, slots with wordings.

A slot is a tuple of wordings of one sentence, of which an article has one. Slots under
"optional" are drawn, those under "lead" always stand at the head, those under "end" at
the end. "highlights" are slots too; they reword the lead and repeat its facts. Every
fact that a highlight names is named by each wording of a lead slot.
"""


def _words(text: str) -> tuple[str, ...]:
  return tuple(text.split())


WEEKDAYS = (
  "Monday",
  "Tuesday",
  "Wednesday",
  "Thursday",
  "Friday",
  "Saturday",
  "Sunday",
)
FIRST = {
  "she": _words(
    "Alice Beth Carol Diana Fiona Grace Helen Irene Joan Kate Lucy Mary Nina Olga "
    "Rosa Sarah Tina Vera Wendy Zoe"
  ),
  "he": _words(
    "Adam Brian Carl Daniel Edward Frank George Henry Ivan James Kevin Leo Mark "
    "Neil Oliver Robert Steven Tom Victor Walter"
  ),
}
SURNAME_STARTS = _words(
  "Ash Bel Brad Carl Dal Ever Fair Gran Hal Kim Lang Mar Nor Pem Rad"
)
SURNAME_ENDS = _words(
  "by den don field ford ham ley man mere ridge stone ton well wick wood"
)
TOWN_STARTS = _words(
  "Alder Bran Cold Dun East Glen Har Kings Lin Mill Oak Red Stan Wel"
)
TOWN_ENDS = _words(
  "bury bridge combe dale gate haven hurst mouth pool port stead worth"
)
COMPANY_STARTS = _words(
  "Apex Boreal Cobalt Delta Falcon Helix Lumen Nova Orion Quantum"
)
COMPANY_ENDS = _words("Airways Bank Energy Foods Motors Systems Textiles")
TEAM_ENDS = _words("Rovers United Wanderers City Athletic Rangers")

# Sentences that suit an event of any kind.
COMMON = (
  (
    "{town}, a town of {people} people, lies {hours} hours by train from {town2}.",
    "With its {people} people, {town} is a little smaller than {town2}.",
  ),
  (
    "The news was first reported by a local paper, which sold {copies} copies.",
    "A local radio station changed its programme and spoke of nothing else all day.",
  ),
  (
    "Reporters from {town2} arrived too late to see any of it.",
    "In {town2}, hardly anybody had heard of it before the evening news.",
  ),
  (
    "A photograph of {first} {last} was shared {shares} times within {hours} hours.",
    "Within {hours} hours, {shares} people had written to the local paper about it.",
  ),
)

KINDS = {
  "match": {
    "lead": (
      (
        "{team} beat {rival} {high}-{low} in front of {crowd} supporters on {day}.",
        "{crowd} supporters watched {team} beat {rival} {high}-{low} on {day}.",
        "On {day}, {team} won {high}-{low} against {rival} before a crowd of {crowd}.",
      ),
      (
        "{first} {last} scored {goals} goals in a game that had been put off twice.",
        "The hero of the evening was {first} {last}, who scored {goals} goals.",
      ),
    ),
    "optional": (
      (
        "{Pro} opened the scoring after {minute} minutes with a shot from the left.",
        "The first goal came after {minute} minutes, from a corner nobody cleared.",
      ),
      (
        "The visitors had chances of their own, but failed to use them.",
        "{rival} began well and hit the post twice in the opening quarter of an hour.",
      ),
      (
        '"We worked hard for this," said the coach, {first2} {last2}, after the game.',
        "The coach, {first2} {last2}, praised the courage of {pos2} players.",
      ),
      (
        "The club paid {money} million euros for {last} in {year}.",
        "{last} joined the club in {year} for a fee of {money} million euros.",
      ),
      (
        "The result takes {team} to {points} points and into second place.",
        "{team} now have {points} points, four fewer than the leaders.",
      ),
      ("A defender was sent off shortly before half-time for a foul near the line.",),
      ("Heavy rain in {town} had delayed the start of the game by {delay} minutes.",),
      (
        "{rival} have not won away from home since {month}.",
        "It was the {nth} defeat in a row for {rival}.",
      ),
      ("Several fans were seen dancing in the streets of {town} until midnight.",),
      ("The referee added {added} minutes, in which nothing happened.",),
    ),
    "end": (
      (
        "{team} play their next game in {town2} in {weeks} weeks.",
        "The next opponents of {team} come from {town2}.",
      ),
    ),
    "highlights": (
      (
        "{first} {last} scores {goals} goals as {team} beat {rival} {high}-{low} .",
        "{team} defeat {rival} {high}-{low} with {goals} goals by {first} {last} .",
      ),
      (
        "A crowd of {crowd} saw the game on {day} .",
        "{crowd} people watched the match on {day} .",
      ),
    ),
  },
  "election": {
    "lead": (
      (
        "{first} {last} was elected mayor of {town} on {day} with {share} percent of "
        "the vote.",
        "The people of {town} chose {first} {last} as their mayor on {day}, giving "
        "{obj} {share} percent of the vote.",
      ),
      (
        "{Pro} defeated {first2} {last2}, who had led the town for {years} years.",
        "{first2} {last2}, mayor for {years} years, accepted defeat shortly before "
        "midnight.",
      ),
    ),
    "optional": (
      (
        '"This is a new beginning for all of us," {last} told a cheering crowd.',
        "{last} thanked the voters and promised to listen to everybody.",
      ),
      (
        "About {crowd} people voted, more than in any election since {year}.",
        "Officials counted {crowd} votes, and the last of them arrived by boat.",
      ),
      (
        "The campaign was mostly about schools, rents and the future of the harbour.",
        "Rents, buses and the old harbour had been the main subjects of the campaign.",
      ),
      (
        "{last} wants to spend {money} million euros on a new bridge.",
        "One of {pos} promises is a bridge that would cost {money} million euros.",
      ),
      (
        "{last2} said that {pro2} would take a long holiday with {pos2} family.",
        "{last2} wished the winner luck and left the room without taking questions.",
      ),
      (
        "{last}, {age}, is a former teacher who moved to the town in {year}.",
        "The new mayor is {age} years old and used to teach chemistry.",
      ),
      ("Supporters had knocked on {doors} doors during the last week alone.",),
      ("One polling station had to close for {delay} minutes because of a power cut.",),
      ("Neighbouring {town2} will hold its own election in {month}.",),
      (
        "Experts from the university called the result a surprise.",
        "Few experts had expected such a clear result.",
      ),
    ),
    "end": (
      (
        "The new council will meet for the first time in {weeks} weeks.",
        "{last} will take office in {weeks} weeks.",
      ),
    ),
    "highlights": (
      (
        "{first} {last} wins the election in {town} with {share} percent of the vote .",
        "{town} elects {first} {last} as mayor with {share} percent .",
      ),
      (
        "{first2} {last2} loses office after {years} years .",
        "Defeat for {first2} {last2} ends {years} years in office .",
      ),
    ),
  },
  "storm": {
    "lead": (
      (
        "A storm with winds of {speed} kilometres an hour struck {town} on {day}, "
        "leaving {homes} homes without power.",
        "{homes} homes in {town} lost power on {day} when a storm brought winds of "
        "{speed} kilometres an hour.",
      ),
      (
        "At least {hurt} people were injured, the head of the fire service, {first} "
        "{last}, said.",
        "{first} {last}, who leads the fire service, said that {hurt} people had been "
        "injured.",
      ),
    ),
    "optional": (
      (
        '"Stay at home and keep away from the river," {last} warned.',
        "{last} asked everybody to stay indoors until the wind had dropped.",
      ),
      (
        "The river rose by {metres} metres in only {hours} hours.",
        "In {hours} hours the water rose by {metres} metres and flooded the market.",
      ),
      (
        "Trains between {town} and {town2} were cancelled for the whole day.",
        "No trains were running between {town} and {town2}.",
      ),
      (
        "Insurers put the damage at {money} million euros.",
        "The damage may reach {money} million euros, according to a first estimate.",
      ),
      (
        "{first2} {last2} had just closed {pos2} shop when a tree fell on the roof.",
        'A tree hit the shop of {first2} {last2}. "I was very lucky," {pro2} said.',
      ),
      ("Schools will stay closed until the roads have been cleared.",),
      ("More than {crowd} sandbags were carried to the old town by volunteers.",),
      (
        "It was the worst storm in the region since {year}.",
        "Nobody in the region remembers anything like it since {year}.",
      ),
      ("About {doors} people spent the night in a sports hall.",),
      ("The electricity company sent {added} teams to repair the lines.",),
    ),
    "end": (
      (
        "Forecasters expect calmer weather in {weeks} days.",
        "The wind should drop within {weeks} days, forecasters said.",
      ),
    ),
    "highlights": (
      (
        "Storm leaves {homes} homes in {town} without electricity on {day} .",
        "Winds of {speed} kilometres an hour cut power to {homes} homes in {town} .",
      ),
      (
        "{hurt} people hurt, according to {first} {last} of the fire service .",
        "Fire service chief {first} {last} reports {hurt} injured .",
      ),
    ),
  },
  "company": {
    "lead": (
      (
        "{company} said on {day} that its profit had {moved} by {share} percent to "
        "{money} million euros.",
        "The profit of {company} has {moved} by {share} percent to {money} million "
        "euros, the company said on {day}.",
      ),
      (
        "Its chief executive, {first} {last}, plans to {hire} {jobs} people in {town}.",
        "{first} {last}, the chief executive, announced that the company would {hire} "
        "{jobs} people in {town}.",
      ),
    ),
    "optional": (
      (
        '"We have to think of the next ten years," {last} said.',
        "{last} spoke of a difficult year, but said that {pro} was full of hope.",
      ),
      (
        "Sales came to {crowd} units, which was more than the market had expected.",
        "The company sold {crowd} units during the last quarter.",
      ),
      (
        "The shares closed {points} cents higher.",
        "Investors were not impressed, and the shares lost {points} cents.",
      ),
      (
        "A spokeswoman for the union, {first2} {last2}, called the plan a mistake.",
        "{first2} {last2} of the union asked for talks without delay.",
      ),
      (
        "The company was founded in {year} by two brothers from {town2}.",
        "Founded in {year}, the company still has its main office in {town2}.",
      ),
      ("Higher prices for energy had been a burden for most of the year.",),
      ("A new factory will open in {month} and cost {money2} million euros.",),
      ("The oldest plant, which is {age} years old, will be sold.",),
      (
        "Analysts had expected a much smaller change.",
        "Analysts described the figures as better than they looked.",
      ),
      ("About {doors} suppliers depend on the company.",),
    ),
    "end": (
      (
        "The next figures will be published in {weeks} weeks.",
        "Shareholders will meet in {weeks} weeks.",
      ),
    ),
    "highlights": (
      (
        "Profit of {company} has {moved} by {share} percent to {money} million euros .",
        "{company} reports a profit of {money} million euros .",
      ),
      (
        "{first} {last} wants to {hire} {jobs} people in {town} .",
        "Chief executive {first} {last} will {hire} {jobs} people in {town} .",
      ),
    ),
  },
  "court": {
    "lead": (
      (
        "A court in {town} sent {first} {last}, {age}, to prison for {years} years on "
        "{day}.",
        "{first} {last}, {age}, must go to prison for {years} years, a court in {town} "
        "decided on {day}.",
      ),
      (
        "{Pro} had stolen {cash} euros from {company} while working there.",
        "The judges found that {pro} had taken {cash} euros from {company}.",
      ),
    ),
    "optional": (
      (
        '"You have abused the trust of many people," said the judge, {first2} {last2}.',
        "The judge, {first2} {last2}, said that {pro2} had rarely seen such greed.",
      ),
      (
        "{last} showed no emotion when the sentence was read out.",
        "{last} looked at the floor and said nothing.",
      ),
      (
        "The trial had lasted {weeks} weeks, and {minute} witnesses were heard.",
        "In {weeks} weeks the court heard {minute} witnesses.",
      ),
      (
        "The money was spent on cars, watches and a house in {town2}.",
        "Police later found a boat and {added} watches in {town2}.",
      ),
      (
        "A young accountant had noticed the missing sums in {month}.",
        "The case began in {month}, when a bank reported a strange payment.",
      ),
      ("The lawyers of the accused had asked for a shorter sentence.",),
      (
        "{last} had worked for the company since {year}.",
        "The company had hired {last} in {year}.",
      ),
      ("A spokesman for {company} said that no customer had lost any money.",),
      ("The oldest of the payments was hidden under the name of a dead aunt.",),
      ("Reporters had waited outside the court since early morning.",),
    ),
    "end": (
      (
        "The lawyers have {points} days to appeal.",
        "An appeal is possible within {points} days.",
      ),
    ),
    "highlights": (
      (
        "{first} {last} is jailed for {years} years by a court in {town} .",
        "{town} court gives {first} {last}, {age}, {years} years in prison .",
      ),
      (
        "The {age}-year-old stole {cash} euros from {company} .",
        "{last} took {cash} euros from {company}, the judges found .",
      ),
    ),
  },
}
