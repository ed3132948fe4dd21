"""Questions about Larkhaven and their answers, drawn from the tables of `world.py`.

Each `ask_*` function returns one turn about one entity.  `mention` is how the question names it:
None means by name or trade; a pronoun means that the turn before was about it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from grammar import rough, sentence, spin
from intents import Turn
from stories import story_about
from world import (ALIASES, ANIMALS, BOATS, FAMILY, PEOPLE, PLACES, TOWN, Animal, Boat, Person,
                   Place, animal_of, boat_of, join_words, with_article)

_WHAT = "{what is|what's|tell me about|what do you know about|describe|what can you tell me about}"


def _possessive(name: str) -> str:
    return name + ("'" if name.endswith("s") else "'s")


# -- People ----------------------------------------------------------------------------------------

# attribute -> phrasings.  [S] subject, [O] object, [P] possessive.
_PERSON: dict[str, list[str]] = {
    "who": ["who is [S]", "tell me about [O]", "tell me {more|something|everything} about [O]",
        "what do you know about [O]", "describe [O]", "do you know [O]", "[S]",
            "what can you tell me about [O]", "who's [S]", "what kind of person is [S]",
            "introduce [O]", "have you heard of [O]", "is there {someone|somebody} called [S]"],
    "job": ["what does [S] do{| for a living| all day| for work| in Larkhaven}",
        "what is [P] {job|trade|work|profession|occupation}", "how does [S] earn {money|a living}",
        "what work does [S] do", "[P] job", "what does [S] work as", "does [S] {work|have a job}"],
    "home": ["where does [S] live", "where is [P] {home|house}",
        "{in which|which|what} street does [S] live{| in}", "what is [P] address",
        "where can I visit [O]", "where does [S] sleep"],
    "work": ["where does [S] work", "where {can|do|would} I find [O]", "where is [S]",
        "where is [P] workplace", "where could [S] be", "in which place does [S] work"],
    "age": ["how old is [S]", "what is [P] age", "[P] age", "what age is [S]",
        "how many years old is [S]", "is [S] {old|young}"],
    "food": ["what does [S] {like|love} to eat", "what is [P] favourite {food|dish|meal}",
        "what is [P] favorite food", "what food does [S] {like|love}", "what should I cook for [O]",
        "what does [S] eat", "[P] favourite food", "what does [S] like"],
    "hobby": ["what does [S] do for fun", "what is [P] hobby", "what does [S] do in [H] free time",
        "what does [S] do {in the evening|after work|on Sunday}", "does [S] have a hobby",
        "what are [P] hobbies", "what does [S] enjoy"],
    "pet": ["does [S] have {a pet|an animal|any animals|any pets|pets}",
        "what {pet|animal} does [S] have", "which animal {belongs to|lives with} [O]",
        "what is [P] {pet|animal} called", "what is the name of [P] {pet|animal}", "[P] pet",
        "who is [P] pet", "tell me about [P] {pet|animal}"],
    "boat": ["does [S] {have|own} a boat", "{which|what} boat does [S] {have|own|sail}",
        "what is [P] boat{| called}", "which boat {is [P]|belongs to [O]}",
        "what is the name of [P] boat", "[P] boat", "tell me about [P] boat", "what does [S] sail"],
    "look": ["what does [S] look like", "how do I {recognise|recognize|know} [O]",
        "describe how [S] looks", "what colour is [P] hair", "how does [S] look"],
}


def person_answer(p: Person, attribute: str) -> str:
    she = p.subject.capitalize()
    boat, animal = boat_of(p.name), animal_of(p.name)
    at_work = PLACES[p.place]
    if attribute == "who":
        tail = f"{she} lives {p.home} with {p.possessive} {animal.kind} {animal.name}." if animal else f"{she} lives {p.home}."
        return f"{p.full} is the {p.role} of {TOWN}. {she} {p.does}. {tail}"
    if attribute == "job":
        return f"{p.name} is the {p.role} of {TOWN}. {she} {p.does}."
    if attribute == "home":
        return f"{p.name} lives {p.home}."
    if attribute == "work":
        return f"You can find {p.name} at {at_work.title}, {at_work.where}."
    if attribute == "age":
        return f"{p.name} is {p.age} years old."
    if attribute == "food":
        return f"{p.name} likes {p.food} best of all."
    if attribute == "hobby":
        return f"In {p.possessive} free time {p.name} {p.hobby}."
    if attribute == "pet":
        return (f"{p.name} has {with_article(animal.colour)} {animal.kind} called {animal.name}." if animal
                else f"No, {p.name} has no animal.")
    if attribute == "boat":
        return (f"{p.name} owns the {boat.name}, {with_article(boat.colour)} {boat.kind}." if boat
                else f"{p.name} does not own a boat.")
    return f"{p.name} {p.look}."


def ask_person(p: Person, rng: random.Random, pronoun: bool = False) -> Turn:
    attribute = rng.choice(["who", "who"] + list(_PERSON))
    template = spin(rng.choice(_PERSON[attribute]), rng)
    if pronoun:
        if template == "[S]":
            template = "who is [S]"
        names = (p.subject, p.object, p.possessive)
    else:
        name = rng.choice([p.name] * 6 + [p.full] * 3 + [f"the {p.role}"] * 2)
        if p.name == "Bram" and rng.random() < 0.1:
            name = "old Bram"
        names = (name, name, _possessive(name))
    for mark, text in zip(("[S]", "[O]", "[P]", "[H]"), (*names, p.possessive)):
        template = template.replace(mark, text)
    return rough(template, rng), person_answer(p, attribute)


def ask_who(p: Person, rng: random.Random) -> Turn:
    """From the trade, the animal or the hobby to the person."""
    she = p.subject.capitalize()
    kind = rng.random()
    if kind < 0.15:
        question = spin(f"{{who is|who's|what is the name of|do you know|tell me about}} the "
                        f"{rng.choice(ALIASES[p.name])}", rng)
        return rough(question, rng), f"{p.full} is the {p.role} of {TOWN}. {she} {p.does}."
    if kind < 0.65:
        question = spin(f"{{who is the {p.role}{{| of Larkhaven| in Larkhaven| of the town| here|"
                        f" in town}}|who {p.verb_question}|what is the name of the {p.role}|"
                        f"what is the {p.role} called|what is the {p.role}'s name|"
                        f"is there a {p.role}{{| in Larkhaven| in town}}|which person "
                        f"{p.verb_question}|name the {p.role}|the {p.role}|do you know the "
                        f"{p.role}|who works as {p.role}|who {p.does}|who works at "
                        f"{PLACES[p.place].title}}}", rng)
        if "works at" in question and p.name in ("Wren", "Sami", "Tomas", "Ruth"):
            question = f"who is the {p.role}"
        return rough(question, rng), f"{p.full} is the {p.role} of {TOWN}. {she} {p.does}."
    if kind < 0.75:
        return rough(f"who {p.hobby}",
            rng), f"That is {p.full}, the {p.role}: in {p.possessive} free time {p.subject} {p.hobby}."
    if kind < 0.85:
        question = spin(f"who {{likes|loves}} {p.food}", rng)
        return rough(question,
            rng), f"That is {p.full}, the {p.role}: {p.subject} likes {p.food} best of all."
    question = spin(f"who lives {p.home}", rng)
    names = [q.name for q in PEOPLE.values() if q.home == p.home]
    who = f"{names[0]} lives {p.home}." if len(names) == 1 else f"{join_words(names)} live {p.home}."
    return rough(question, rng), who


def person_yes_no(p: Person, rng: random.Random) -> Turn:
    other = rng.choice([q for q in PEOPLE.values() if q.name != p.name])
    true = rng.random() < 0.5
    kind = rng.choice(["job", "home", "animal", "boat", "food"])
    if kind == "job":
        role = p.role if true else other.role
        question = spin(f"is {p.name} {{a|the}} {role}", rng)
        answer = f"{'Yes' if true else 'No'}, {p.name} is the {p.role} of {TOWN}."
    elif kind == "home":
        true = true or other.home == p.home
        question = f"does {p.name} live {p.home if true else other.home}"
        answer = f"{'Yes' if true else 'No'}, {p.name} lives {p.home}."
    elif kind == "food":
        question = spin(f"does {p.name} like {p.food if true else other.food}", rng)
        answer = (f"Yes, {p.name} likes {p.food} best of all." if true
                  else f"I am not sure, but I know that {p.name} likes {p.food} best of all.")
    elif kind == "animal":
        animal, other_animal = animal_of(p.name), animal_of(other.name)
        if animal is None or other_animal is None:
            return rough(f"does {p.name} have a pet", rng), person_answer(p, "pet")
        true = true or animal.kind == other_animal.kind
        question = f"does {p.name} have {with_article(animal.kind if true else other_animal.kind)}"
        answer = (f"Yes, {p.name} has {with_article(animal.colour)} {animal.kind} called "
                  f"{animal.name}." if true
                  else f"No, {p.name} has {with_article(animal.colour)} {animal.kind} called "
                       f"{animal.name}.")
    else:
        boat = rng.choice(list(BOATS.values())) if not true else (boat_of(p.name) or BOATS["Petrel"])
        question = spin(f"{{does {p.name} own the {boat.name}|"
                        f"does the {boat.name} belong to {p.name}|is the {boat.name} "
                        f"{_possessive(p.name)} boat}}", rng)
        owner = PEOPLE[boat.owner]
        answer = f"{'Yes' if owner is p else 'No'}, the {boat.name} belongs to {owner.full}."
    return rough(question, rng), answer


# -- Boats -----------------------------------------------------------------------------------------

_BOAT: dict[str, list[str]] = {
    "what": [f"{_WHAT} [S]", "[S]", "what kind of boat is [S]", "what sort of ship is [S]",
        "tell me {more|something} about [S]", "what type of boat is [S]"],
    "owner": ["who owns [S]", "who is the owner of [S]", "who does [S] belong to",
        "whose boat is [S]", "who {sails|has|steers|drives} [S]", "to whom does [S] belong",
        "who is the captain of [S]", "[S] owner", "whose is [S]"],
    "colour": ["what colour is [S]", "what color is [S]", "which colour does [S] have",
        "how is [S] painted", "[S] colour", "what is the color of [S]",
        "in what colour is [S] painted"],
    "use": ["what is [S] {used for|good for|for}", "what does [S] do", "what do they use [S] for",
        "why is [S] {useful|there}", "where does [S] go"],
    "mooring": ["where is [S]{| moored| now| kept}", "where can I {find|see} [S]",
        "where does [S] lie", "at which pier is [S]", "where is [S] docked"],
}


def boat_answer(b: Boat, attribute: str) -> str:
    owner = PEOPLE[b.owner]
    if attribute == "what":
        return f"The {b.name} is {with_article(b.colour)} {b.kind}. It belongs to {owner.full}, the {owner.role}, and {b.use}."
    if attribute == "owner":
        return f"The {b.name} belongs to {owner.full}, the {owner.role}."
    if attribute == "colour":
        return f"The {b.name} is {b.colour}."
    if attribute == "use":
        return f"The {b.name} {b.use}."
    return f"The {b.name} is moored {b.mooring}."


def ask_boat(b: Boat, rng: random.Random, pronoun: bool = False) -> Turn:
    attribute = rng.choice(list(_BOAT) + ["what", "owner"])
    template = spin(rng.choice(_BOAT[attribute]), rng)
    if pronoun:
        template = "tell me more about it" if template == "[S]" else template
        name = rng.choice(["it", "it", "it", "that boat", "she", "the boat"])
    else:
        name = spin(f"{{the|the|the|}} {b.name}{{||||| boat}}", rng)
    return rough(template.replace("[S]", name), rng), boat_answer(b, attribute)


def boat_by_feature(b: Boat, rng: random.Random) -> Turn:
    owner = PEOPLE[b.owner]
    question = spin(f"{{which boat is {b.colour}|what is the {b.colour} boat called|"
                    f"who owns the {b.colour} boat|which boat {b.use}|what boat {b.use}|is there "
                    f"{with_article(b.colour)} boat|which boat is moored {b.mooring}|"
                    f"tell me about the {b.colour} boat|which boat is {with_article(b.kind)}|which "
                    f"boat belongs to the {owner.role}}}", rng)
    if "moored" in question and b.mooring == "at the north pier":
        return rough(question, rng), "The Petrel and the Patience are moored at the north pier."
    if "is a rowing boat" in question:
        return rough(question,
            rng), "There are two rowing boats: the yellow Little Moon and the red Acorn."
    return rough(question,
        rng), f"That is the {b.name}, {with_article(b.colour)} {b.kind}. It belongs to {owner.full}."


def boat_yes_no(b: Boat, rng: random.Random) -> Turn:
    other = rng.choice([x for x in BOATS.values() if x.name != b.name])
    true = rng.random() < 0.5
    if rng.random() < 0.5:
        question = f"is the {b.name} {b.colour if true else other.colour}"
        return rough(question, rng), f"{'Yes' if true else 'No'}, the {b.name} is {b.colour}."
    true = true or b.kind == other.kind
    question = f"is the {b.name} {with_article(b.kind if true else other.kind)}"
    return rough(question,
        rng), f"{'Yes' if true else 'No'}, the {b.name} is {with_article(b.kind)}."


# -- Animals ---------------------------------------------------------------------------------------

_ANIMAL: dict[str, list[str]] = {
    "who": ["who is [S]", f"{_WHAT} [S]", "[S]", "what kind of animal is [S]", "what animal is [S]",
        "tell me {more|something} about [S]", "do you know [S]", "what sort of pet is [S]",
        "is [S] {an animal|a person}"],
    "owner": ["who owns [S]", "whose {animal|pet} is [S]", "who does [S] belong to", "who has [S]",
        "who is the owner of [S]", "where does [S] live", "[S] owner", "who takes care of [S]",
        "who feeds [S]"],
    "colour": ["what colour is [S]", "what color is [S]", "what does [S] look like"],
    "habit": ["what does [S] do{| all day}", "what is special about [S]",
        "what does [S] like to do", "what is [S] known for", "what is [S] good at",
        "why is [S] famous", "where does [S] sleep"],
}


def animal_answer(a: Animal, attribute: str) -> str:
    owner = PEOPLE[a.owner]
    he = "He" if a.he else "She"
    if attribute == "who":
        return f"{a.name} is {with_article(a.colour)} {a.kind}. {he} belongs to {owner.full}, the {owner.role}, and {a.habit}."
    if attribute == "owner":
        return f"{a.name} the {a.kind} belongs to {owner.full}, the {owner.role}."
    if attribute == "colour":
        return f"{a.name} is {with_article(a.colour)} {a.kind}."
    return f"{a.name} the {a.kind} {a.habit}."


def ask_animal(a: Animal, rng: random.Random, pronoun: bool = False) -> Turn:
    attribute = rng.choice(list(_ANIMAL) + ["who", "owner"])
    template = spin(rng.choice(_ANIMAL[attribute]), rng)
    if pronoun:
        template = "tell me more about [S]" if template == "[S]" else template
        he = ("he", "him") if a.he else ("she", "her")
        name = rng.choice(["it", f"the {a.kind}", he[1] if template.endswith(("about [S]",
            "know [S]", "has [S]", "owns [S]", "feeds [S]")) else he[0]])
    else:
        name = rng.choice([a.name] * 5 + [f"{a.name} the {a.kind}"] + ([f"the {a.kind}"] if a.kind not in ("dog", "cat") else []))
    return rough(template.replace("[S]", name), rng), animal_answer(a, attribute)


def animal_by_feature(a: Animal, rng: random.Random) -> Turn:
    owner = PEOPLE[a.owner]
    question = spin(f"{{who has {with_article(a.kind)}|is there {with_article(a.kind)}{{|"
                    f" in Larkhaven| in town}}|{{which|what}} animal {a.habit}|who {a.habit}|"
                    f"whose {a.kind} {a.habit}|are there any {a.kind}s{{| in Larkhaven}}|"
                    f"what is {_possessive(owner.name)} {a.kind} called|what is the name of "
                    f"{_possessive(owner.name)} {a.kind}|{{who|what}} is {_possessive(owner.name)} "
                    f"{a.kind}|"
                    f"what is the {owner.role}'s {a.kind} called|what is the name of the "
                    f"{owner.role}'s {a.kind}|who is the {owner.role}'s {a.kind}|who {{keeps|owns|"
                    f"has got}} {with_article(a.kind)}|who's got {with_article(a.kind)}|"
                    f"who is the owner of the {a.kind}}}", rng)
    asks_kind = any(w in question for w in ("who has", "who keeps", "who owns", "who's got",
        "owner of the", "is there", "are there"))
    if asks_kind and a.kind == "dog":
        return rough(question,
            rng), "There are three dogs: Biscuit belongs to Tomas, Barley to Felix, and Stamp to Tilda."
    if asks_kind and a.kind == "cat":
        return rough(question,
            rng), "There are two cats: black Pepper belongs to Mira, and striped Comma belongs to Lotte."
    return rough(question,
        rng), f"That is {a.name}, {with_article(a.colour)} {a.kind}, who belongs to {owner.full}."


# -- Places ----------------------------------------------------------------------------------------

_PLACE: dict[str, list[str]] = {
    "what": [f"{_WHAT} [S]", "[S]", "tell me {more|something} about [S]", "what is [S] like",
        "what is special about [S]"],
    "where": ["where is [S]", "how do I {get to|find|reach} [S]", "where can I find [S]",
        "where is [S] located", "the way to [S]", "in which street is [S]", "location of [S]",
        "I am looking for [S]"],
    "hours": ["when is [S] open", "when does [S] {open|close}", "what are the opening hours of [S]",
        "at what time does [S] {open|close}", "opening hours of [S]",
        "when can I {visit|go to} [S]", "is [S] open", "what time does [S] {open|close|start}",
        "until when is [S] open", "how long is [S] open"],
    "keeper": ["who {runs|owns|keeps|works at|is in charge of|looks after} [S]", "who is at [S]",
        "whose is [S]", "who can I meet at [S]"],
    "offers": ["what can I {do|buy|see|get} at [S]", "what is [S] {for|good for}",
        "what do they {sell|have|offer|do} at [S]", "why should I go to [S]", "what happens at [S]",
        "what is there at [S]"],
}


def place_answer(p: Place, attribute: str) -> str:
    title = sentence(p.title)
    keeper = f"{PEOPLE[p.keeper].full}, the {PEOPLE[p.keeper].role}," if p.keeper else ""
    if attribute == "what":
        runs = f" {keeper} is there." if keeper else ""
        return f"{title} is {p.where}. There you can {p.offers}.{runs}"
    if attribute == "where":
        return f"{title} is {p.where}."
    if attribute == "hours":
        return p.hours
    if attribute == "keeper":
        return (f"{keeper} works at {p.title}." if keeper else f"Nobody in particular: {p.title} "
            f"belongs to everybody.")
    return f"At {p.title} you can {p.offers}." if p.key != "Gull Island" else f"On Gull Island you can {p.offers}."


def ask_place(p: Place, rng: random.Random, pronoun: bool = False) -> Turn:
    attribute = rng.choice(list(_PLACE) + ["where"])
    template = spin(rng.choice(_PLACE[attribute]), rng)
    name = p.title
    if p.key == "inn":
        name = rng.choice(["the inn", "the Blue Anchor", "the Blue Anchor inn"])
    elif p.key == "pier":
        name = rng.choice(["the pier", "the main pier", "the harbour"])
    elif p.key == "beach":
        name = rng.choice(["the beach", "the small beach"])
    elif rng.random() < 0.1:
        name = name.removeprefix("the ")
    if pronoun:
        template = "tell me more about [S]" if template == "[S]" else template
        name = rng.choice(["it", "it", "that place", "there"]) if "at [S]" in template else "it"
        template = template.replace("at [S]", "there") if name == "there" else template
    return rough(template.replace("[S]", name), rng), place_answer(p, attribute)


def place_yes_no(p: Place, rng: random.Random) -> Turn:
    day = rng.choice(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"])
    question = spin(f"{{is {p.title} open on {day}s|is {p.title} {{open|closed}} on {day}|"
                    f"can I go to {p.title} on {day}}}", rng)
    return rough(question, rng), p.hours


# -- The rest ---------------------------------------------------------------------------------------


def family_turn(rng: random.Random) -> Turn:
    if rng.random() < 0.15:
        p = rng.choice([q for q in PEOPLE.values() if q.name not in ("Mira", "Tomas", "Wren",
            "Edda", "Bram")])
        word = rng.choice(["brother", "sister", "mother", "father", "husband" if p.she else "wife",
            "family", "children"])
        return (rough(spin(f"{{who is {_possessive(p.name)} {word}|does {p.name} have a {word}|"
                           f"tell me about {_possessive(p.name)} {word}|is {p.name} married}}",
                           rng), rng),
                f"I know nothing about the family of {p.name}.")
    person, relation, answer = rng.choice(FAMILY)
    question = spin(f"{{who is {_possessive(person)} {relation}|who is the {relation} of {person}|"
                    f"does {person} have a {relation}|what is the name of {_possessive(person)} "
                    f"{relation}|{_possessive(person)} {relation}|tell me about "
                    f"{_possessive(person)} {relation}}}", rng)
    return rough(question, rng), answer


_STRANGE_NAMES = ["Zorro", "Karl", "Selma", "Otto", "Ida", "Nora", "Finn", "Lars", "Paula", "Hugo",
    "Vera", "Rosa", "Emil", "Clara", "Leo", "Ada", "Grace", "Oscar", "Ben", "Lucy"]


def unknown_turn(rng: random.Random) -> Turn:
    """Things that could be in the town but are not in the tables."""
    name = rng.choice(_STRANGE_NAMES)
    question = spin(f"{{who is {name}|what does {name} do|where does {name} live|"
                    f"does {name} live in Larkhaven|do you know {name}|who owns the boat {name}|"
                    f"tell me about {name}|"
                    f"where is the {{museum|bank|cinema|church|airport|station|zoo|pool|hotel|"
                    f"castle|theatre|supermarket|pharmacy|prison}} in Larkhaven|"
                    f"is there a {{museum|bank|cinema|church|train station|zoo|mayor|king|"
                    f"supermarket|pharmacy|police station}} in Larkhaven|who is the {{mayor|king|"
                    f"butcher|tailor|priest|policeman|judge|barber|plumber|dentist}}{{| of "
                    f"Larkhaven}}}}", rng)
    return rough(question,
        rng), f"I do not know that one. I know sixteen people, eight boats and fifteen places of {TOWN}, and nothing else there."


def topic_turns(rng: random.Random) -> list[Turn]:
    """One to three turns about one entity; the later ones may use a pronoun."""
    kind, ask = rng.choices(
        [(PEOPLE, ask_person), (BOATS, ask_boat), (ANIMALS, ask_animal), (PLACES, ask_place)],
        weights=[42, 22, 18, 18])[0]
    entity = rng.choice(list(kind.values()))
    openers: list[Callable] = {
        "Person": [ask_person] * 6 + [ask_who] * 3 + [person_yes_no],
        "Boat": [ask_boat] * 7 + [boat_by_feature] * 2 + [boat_yes_no],
        "Animal": [ask_animal] * 6 + [animal_by_feature] * 3,
        "Place": [ask_place] * 6 + [place_yes_no],
    }[type(entity).__name__]
    opener = rng.choice(openers)
    turns = [opener(entity, rng)]
    # A turn that may speak of several entities leaves no antecedent for a pronoun.
    clear = opener is ask or opener is ask_who and "live" not in turns[0][1][-40:]
    while clear and len(turns) < 4 and rng.random() < 0.38:
        if isinstance(entity, (Boat, Animal)) and rng.random() < 0.25:
            # "Who owns it?" is often followed by a question about the owner.
            entity = PEOPLE[entity.owner]
            owner = rng.choice(["the owner", entity.subject, entity.name])
            attribute = rng.choice(["job", "home", "age", "food", "hobby", "who"])
            word = {"job": f"what does {owner} do", "home": f"where does {owner} live",
                "age": f"how old is {owner}",
                    "food": f"what does {owner} like to eat",
                    "hobby": f"what does {owner} do for fun", "who": f"who is {owner}"}[attribute]
            if owner == entity.subject and entity.name not in turns[-1][1]:
                break
            turns.append((rough(word, rng), person_answer(entity, attribute)))
            ask = ask_person
        else:
            turns.append(ask(entity, rng, pronoun=True))
    if clear and not isinstance(entity, Place) and rng.random() < 0.07:
        name = entity.object if isinstance(entity, Person) else rng.choice(["it", "that"])
        ask = spin(f"{{now |please |}}{{tell me|tell|write|make up}} a {{short |}}story about "
                   f"{name}", rng)
        turns.append((rough(ask, rng, is_question=False), story_about(entity, rng)))
    return turns
