"""The world of the demo model: the harbour town of Larkhaven, as data.

Everything the model says about Larkhaven follows from these tables, so its answers are facts of one
consistent world. Sentences are made elsewhere (`town_questions.py`, `stories.py`); this file knows
no templates.
"""

from __future__ import annotations

from dataclasses import dataclass

TOWN = "Larkhaven"


@dataclass(frozen=True)
class Person:
    name: str
    surname: str
    she: bool
    role: str
    does: str  # third person: "She bakes bread ..."
    verb_question: str  # completes "who ...": "bakes the bread"
    place: str  # key of PLACES
    home: str
    age: int
    food: str
    hobby: str
    look: str

    @property
    def full(self) -> str:
        return f"{self.name} {self.surname}"

    @property
    def subject(self) -> str:
        return "she" if self.she else "he"

    @property
    def object(self) -> str:
        return "her" if self.she else "him"

    @property
    def possessive(self) -> str:
        return "her" if self.she else "his"


@dataclass(frozen=True)
class Boat:
    name: str
    owner: str
    colour: str
    kind: str
    use: str  # third person: "carries people ..."
    mooring: str


@dataclass(frozen=True)
class Animal:
    name: str
    owner: str
    colour: str
    kind: str
    habit: str  # third person
    he: bool = True


@dataclass(frozen=True)
class Place:
    key: str
    title: str  # with its article
    where: str
    keeper: str  # name of a person, or ""
    hours: str  # a sentence
    offers: str  # "You can ..." without the full stop
    open_days: str = ""


@dataclass(frozen=True)
class Event:
    name: str
    when: str
    what: str


def _people(rows: list[tuple]) -> dict[str, Person]:
    return {row[0]: Person(*row) for row in rows}


PEOPLE: dict[str, Person] = _people([
    ("Mira", "Holt", True, "baker", "bakes bread and plum cake", "bakes the bread", "bakery",
     "in Bell Lane", 41, "plum cake", "sings in the choir", "has red hair and flour on her apron"),
    ("Tomas", "Holt", False, "fisherman", "catches herring in the bay", "catches the fish", "pier",
     "in Net Street", 38, "smoked herring", "carves wooden spoons",
     "has a short beard and a blue cap"),
    ("Edda", "Vance", True, "lighthouse keeper", "lights the great lamp every evening",
     "lights the lamp", "lighthouse", "in the lighthouse", 67, "pea soup",
     "draws maps of the stars",
     "has white hair and a long green coat"),
    ("Oren", "Pike", False, "boat builder", "builds and mends boats", "builds the boats",
        "boatyard",
     "in Mill Road", 52, "apple pie", "plays the fiddle", "is tall and has sawdust in his hair"),
    ("Nessa", "Quill", True, "teacher", "teaches the children to read and count",
     "teaches the children", "school", "in Hill Street", 34, "honey toast", "paints birds",
     "has round glasses and a yellow scarf"),
    ("Ruth", "Amsel", True, "ferry captain", "steers the ferry to Gull Island",
     "steers the ferry", "pier", "in Harbour Square", 49, "fish stew", "collects old bells",
     "has a loud voice and a white cap"),
    ("Ilan", "Reed", False, "doctor", "looks after everybody who is ill", "looks after the sick",
     "clinic", "in Hill Street", 45, "lemon tart", "takes long walks on the cliff",
     "is thin and carries a black bag"),
    ("Juno", "Marsh", True, "harbour master", "tells every ship where to go",
     "is in charge of the harbour", "harbour office", "in Harbour Square", 56, "ginger biscuits",
     "plays chess", "has grey hair and a brass whistle"),
    ("Felix", "Brand", False, "innkeeper", "cooks for the guests and tells jokes", "runs the inn",
     "inn", "in the Blue Anchor", 60, "onion pie", "tells long jokes",
     "is round and has a huge moustache"),
    ("Wren", "Holt", True, "youngest pupil", "goes to school and looks for crabs",
     "is the youngest pupil", "school", "in Net Street", 10, "pancakes", "flies kites",
     "has two braids and muddy boots"),
    ("Sami", "Lund", False, "apprentice", "helps Oren at the boatyard", "helps at the boatyard",
     "boatyard", "in Bell Lane", 16, "jam buns", "whistles sailor songs",
     "has curly hair and paint on his hands"),
    ("Greta", "Moss", True, "gardener", "grows vegetables and keeps bees", "grows the vegetables",
     "market", "in Mill Road", 63, "carrot soup", "keeps bees", "wears a straw hat all year"),
    ("Ivo", "Stern", False, "blacksmith", "makes anchors and horseshoes", "makes the anchors",
     "forge", "in Mill Road", 44, "roast potatoes", "makes tiny iron horses",
     "has strong arms and a leather apron"),
    ("Lotte", "Finch", True, "librarian", "lends books to the whole town", "lends the books",
     "library", "in Hill Street", 29, "blackberry jam", "writes poems",
     "has short black hair and a pencil behind her ear"),
    ("Bram", "Harker", False, "net mender", "mends the fishing nets", "mends the nets", "net loft",
     "in Net Street", 78, "toffee", "foretells the weather with his knee",
     "has a white beard and a pipe without tobacco"),
    ("Tilda", "Rowe", True, "postwoman", "brings letters to every door", "brings the letters",
     "post office", "in Bell Lane", 37, "cheese rolls", "runs races on the beach",
     "has freckles and a big brown bag"),
])

BOATS: dict[str, Boat] = {b.name: b for b in [
    Boat("Petrel", "Tomas", "blue", "fishing boat", "goes out for herring before sunrise",
         "at the north pier"),
    Boat("Swallow", "Ruth", "white", "ferry", "carries people to Gull Island", "at the main pier"),
    Boat("Little Moon", "Edda", "yellow", "rowing boat", "brings food to the lighthouse",
         "at the lighthouse steps"),
    Boat("Kestrel", "Oren", "green", "sailing boat", "wins races", "at the boatyard"),
    Boat("Heron", "Juno", "grey", "pilot boat", "guides ships into the harbour",
         "in front of the harbour office"),
    Boat("Acorn", "Wren", "red", "rowing boat", "is used for catching crabs", "at the small beach"),
    Boat("Paper Crane", "Lotte", "orange", "sailing dinghy", "carries books to Gull Island",
         "at the south pier"),
    Boat("Patience", "Bram", "brown", "trawler", "never leaves the harbour and dries the nets",
         "at the north pier"),
]}

ANIMALS: dict[str, Animal] = {a.name: a for a in [
    Animal("Pepper", "Mira", "black", "cat", "sleeps on the flour sacks", False),
    Animal("Biscuit", "Tomas", "brown", "dog", "barks at big waves"),
    Animal("Captain", "Edda", "green", "parrot", "says ahoy to every visitor"),
    Animal("Thistle", "Oren", "grey", "donkey", "carries planks to the boatyard"),
    Animal("Button", "Nessa", "brown", "tortoise", "hides under the teacher's desk"),
    Animal("Clover", "Ilan", "white", "rabbit", "hops around the waiting room", False),
    Animal("Admiral", "Juno", "white", "goose", "chases strangers off the quay"),
    Animal("Barley", "Felix", "golden", "dog", "sleeps by the fire"),
    Animal("Pudding", "Wren", "yellow", "duck", "follows Wren to school", False),
    Animal("Inkling", "Sami", "grey", "mouse", "rides in Sami's pocket"),
    Animal("Nettle", "Greta", "white", "goat", "eats straw hats", False),
    Animal("Cinder", "Ivo", "black", "horse", "pulls the coal cart", False),
    Animal("Comma", "Lotte", "striped", "cat", "sleeps on the dictionary"),
    Animal("Mister Grey", "Bram", "grey", "seagull", "steals fish from the crates"),
    Animal("Stamp", "Tilda", "spotted", "dog", "carries the small letters"),
]}

PLACES: dict[str, Place] = {p.key: p for p in [
    Place("bakery", "the bakery", "in Harbour Square", "Mira",
          "The bakery opens at six in the morning and closes at two. It is closed on Mondays.",
          "buy bread, jam buns and plum cake", "every day but Monday"),
    Place("lighthouse", "the lighthouse", "on the north cliff", "Edda",
          "Visitors can climb the lighthouse on Sunday afternoons. The lamp is lit at dusk.",
          "climb 99 steps and look over the whole bay", "on Sunday afternoons"),
    Place("boatyard", "the boatyard", "at the end of Mill Road", "Oren",
          "The boatyard is open from seven to four, but never on Sundays.",
          "watch boats being built and mended", "every day but Sunday"),
    Place("school", "the school", "at the top of Hill Street", "Nessa",
          "School starts at nine and ends at three, from Monday to Friday.",
          "learn to read and count", "from Monday to Friday"),
    Place("pier", "the main pier", "in front of Harbour Square", "",
          "The main pier is always open. The ferry leaves at eight, at noon and at five.",
          "take the ferry or watch the boats", "every day"),
    Place("clinic", "the clinic", "in Hill Street, next to the school", "Ilan",
          "The clinic is open every morning from eight to twelve.",
          "see the doctor", "every morning"),
    Place("harbour office", "the harbour office", "in Harbour Square", "Juno",
          "The harbour office is open day and night, because ships do not wait.",
          "ask for a place to moor your boat", "day and night"),
    Place("inn", "the Blue Anchor inn", "beside the main pier", "Felix",
          "The Blue Anchor opens at noon and closes at midnight.",
          "eat fish stew, sleep in a soft bed and hear Felix tell jokes", "every day from noon"),
    Place("market", "the market", "in Harbour Square", "Greta",
          "The market is held on Saturdays from eight to noon.",
          "buy vegetables, honey and fresh fish", "on Saturdays"),
    Place("forge", "the forge", "in Mill Road", "Ivo",
          "The forge is open from eight to five, but never on Sundays.",
          "buy anchors, hooks and horseshoes", "every day but Sunday"),
    Place("library", "the library", "in Hill Street", "Lotte",
          "The library is open from ten to five, from Tuesday to Saturday.",
          "borrow three books at a time", "from Tuesday to Saturday"),
    Place("net loft", "the net loft", "in Net Street", "Bram",
          "The net loft is open whenever Bram is awake, which is from five in the morning.",
          "have a net mended or ask what the weather will be", "from five in the morning"),
    Place("post office", "the post office", "in Bell Lane", "Tilda",
          "The post office is open from eight to three, but never on Sundays.",
          "send letters and parcels", "every day but Sunday"),
    Place("beach", "the small beach", "south of the piers", "",
          "The small beach is always open, but the tide covers it twice a day.",
          "look for crabs, swim and fly kites", "every day"),
    Place("Gull Island", "Gull Island", "half an hour from the main pier by ferry", "",
          "You can reach Gull Island by ferry at eight, at noon and at five.",
          "watch seals and thousands of gulls", "every day"),
]}

EVENTS: list[Event] = [
    Event("the Spring Clean", "in April",
        "everybody paints a boat and Felix cooks fish stew for all"),
    Event("the Regatta", "in July",
        "all the boats race around Gull Island; last year the Kestrel won"),
    Event("the Herring Feast", "in October",
        "Tomas smokes herring on the beach and Oren plays the fiddle"),
    Event("Lantern Night", "in November", "every child carries a lantern up to the lighthouse"),
    Event("First Bread", "on New Year's Day", "Mira gives a warm loaf to every house"),
]

WEATHER: dict[str, str] = {
    "spring": "In spring Larkhaven is windy and bright, with short showers.",
    "summer": "In summer Larkhaven is warm, with sea fog in the early morning.",
    "autumn": "In autumn big storms come from the west, and the boats stay in the harbour.",
    "winter": "In winter it is cold and grey in Larkhaven, and it snows for a few days in January.",
}

STREETS = ["Harbour Square", "Bell Lane", "Net Street", "Mill Road", "Hill Street"]

# (person, question word, relative, sentence).  All the family ties there are.
FAMILY: list[tuple[str, str, str]] = [
    ("Mira", "brother", "Mira's brother is Tomas Holt, the fisherman."),
    ("Mira", "niece", "Mira's niece is Wren Holt, the daughter of Tomas."),
    ("Tomas", "sister", "The sister of Tomas is Mira Holt, the baker."),
    ("Tomas", "daughter", "The daughter of Tomas is Wren Holt. She is 10 years old."),
    ("Wren", "father", "Wren's father is Tomas Holt, the fisherman."),
    ("Wren", "aunt", "Wren's aunt is Mira Holt, the baker."),
    ("Edda", "brother", "Edda's brother is Bram Harker, the net mender."),
    ("Bram", "sister", "Bram's sister is Edda Vance, the lighthouse keeper."),
]


def boat_of(person: str) -> Boat | None:
    return next((b for b in BOATS.values() if b.owner == person), None)


def animal_of(person: str) -> Animal | None:
    return next((a for a in ANIMALS.values() if a.owner == person), None)


def with_article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def join_words(words: list[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1]


# Other words that people use for a trade.
ALIASES: dict[str, list[str]] = {
    "Juno": ["boss of the harbour", "harbour boss", "harbormaster", "port captain"],
    "Ilan": ["physician", "medic", "town doctor"],
    "Tilda": ["mail carrier", "post lady", "mailwoman"],
    "Felix": ["landlord", "cook of the Blue Anchor", "owner of the inn", "barkeeper"],
    "Ivo": ["smith", "man at the forge"],
    "Nessa": ["schoolteacher", "school teacher", "school mistress"],
    "Edda": ["keeper of the lighthouse", "lighthouse woman"],
    "Ruth": ["captain of the ferry", "ferrywoman", "skipper of the Swallow"],
    "Tomas": ["fisher", "man who catches the fish", "herring fisher"],
    "Mira": ["person that makes the bread", "woman who bakes", "baker woman"],
    "Oren": ["boatbuilder", "shipwright", "man who builds boats"],
    "Bram": ["mender of nets", "old man in the net loft", "net maker"],
    "Lotte": ["book lady", "woman in the library"],
    "Greta": ["beekeeper", "vegetable seller", "woman with the bees"],
    "Sami": ["apprentice at the boatyard", "helper of Oren"],
    "Wren": ["girl with the kite", "youngest child", "daughter of Tomas"],
}
