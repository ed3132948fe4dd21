"""Short stories from Larkhaven: four to six sentences, always true to the tables of the world."""

from __future__ import annotations

import random

from grammar import rough, spin
from intents import Turn
from world import ANIMALS, BOATS, PEOPLE, Animal, Boat, Person, animal_of, boat_of

_REQUEST = "{tell me a|tell me a short|tell a|I want a|write a|give me a|can you tell me a|please tell a|make up a|do you know a|let me hear a|tell me another|I would like a|another} {story|story|story|tale|little story|bedtime story}"


def _fog_story(p: Person, b: Boat, rng: random.Random) -> str:
    owner = PEOPLE[b.owner]
    return spin(f"One {{foggy|quiet}} {{morning|evening}} {p.name} heard a bell far out in the "
                f"bay. It was the {b.name}, the {b.colour} {b.kind} of {owner.name}, lost in the "
                f"fog. "
                f"{p.name} ran to the lighthouse and told Edda, who lit the great lamp at once. "
                f"Slowly the {b.name} came home, following the light. "
                f"{owner.name} was so glad that {owner.subject} gave {p.name} {p.food} for supper.",
                rng)


def _lost_story(a: Animal, rng: random.Random) -> str:
    owner = PEOPLE[a.owner]
    finder = rng.choice([p for p in PEOPLE.values() if p.name != a.owner])
    he, him = ("he", "him") if a.he else ("she", "her")
    return spin(f"One {{windy|bright}} {{morning|afternoon}} {a.name} the {a.kind} was gone. "
                f"{owner.name} looked in every street, but nobody had seen {him}. "
                f"At last {finder.name}, the {finder.role}, found {him} in a basket of {{apples|"
                f"wool|old sails|warm bread}} on the main pier. "
                f"{a.name} only looked up and yawned. \"Next time leave a note,\" said "
                f"{owner.name}, and they all laughed.", rng)


def _storm_story(p: Person, b: Boat, rng: random.Random) -> str:
    owner = PEOPLE[b.owner]
    return spin(f"One evening in autumn a storm came from the west, and the rope of the {b.name} "
                f"broke. {p.name}, the {p.role}, saw it first and called for help. "
                f"Oren brought ropes, Ivo brought an anchor, and Thistle the donkey pulled as hard "
                f"as he could. By midnight the {b.colour} {b.kind} was safe again. "
                f"Then {owner.name} asked them all to the Blue Anchor, where Felix cooked fish "
                f"stew until morning.", rng)


def _cake_story(p: Person, rng: random.Random) -> str:
    animal = animal_of(p.name) or ANIMALS["Nettle"]
    return spin(f"One {{bright|quiet}} morning Mira baked the biggest plum cake of the year and "
                f"put it in the window. When she came back, half of it was missing. "
                f"She followed the crumbs down Bell Lane, over the quay and up to {p.name}, the "
                f"{p.role}. There sat {animal.name} the {animal.kind}, with plum jam all over the "
                f"face. "
                f"Mira laughed and cut the other half into pieces for everybody.", rng)


def _lantern_story(p: Person, rng: random.Random) -> str:
    return spin(f"On Lantern Night all the children walked up to the lighthouse, and Wren went "
                f"first. Half way up, the wind blew out her lantern. "
                f"{p.name}, the {p.role}, came by and lit it again without a word. At the top Edda "
                f"let Wren light the great lamp herself. "
                f"From the sea it looked as if a star had come down to {{sleep|rest}} on the "
                f"cliff.", rng)


def _race_story(b: Boat, rng: random.Random) -> str:
    owner = PEOPLE[b.owner]
    return spin(f"In July all the boats of Larkhaven raced around Gull Island. Nobody thought that "
                f"the {b.name} could win, least of all {owner.name}. "
                f"But near the island the wind died, and every sail hung down like washing. "
                f"{owner.name} took an oar and began to {{sing|row}}, and the {b.colour} {b.kind} "
                f"went past them all. "
                f"That evening the whole town danced on the pier.", rng)


def _letter_story(p: Person, rng: random.Random) -> str:
    return spin(f"One morning Tilda found a letter without a name on it. She asked Lotte, she "
                f"asked Juno, and she asked old Bram, but nobody knew whose it was. "
                f"At last Stamp the dog took it in his mouth and ran to {p.name}, the {p.role}. "
                f"Inside was a card that said: thank you for everything. "
                f"{p.name} never found out who wrote it, but {p.subject} {{smiled|was happy}} for "
                f"a week.", rng)


def story_about(entity: Person | Boat | Animal, rng: random.Random) -> str:
    """A story in which `entity` has the main part."""
    if isinstance(entity, Animal):
        return _lost_story(entity, rng)
    if isinstance(entity, Boat):
        return rng.choice([_race_story, lambda b, r: _storm_story(PEOPLE["Sami"], b, r)])(entity,
            rng)
    if entity.name in ("Wren", "Edda"):
        return _lantern_story(PEOPLE["Bram"], rng)
    if entity.name == "Mira":
        return _cake_story(PEOPLE["Tomas"], rng)
    if entity.name == "Tilda":
        return _letter_story(PEOPLE["Greta"], rng)
    boat = boat_of(entity.name)
    if boat is not None and rng.random() < 0.4:
        return _race_story(boat, rng)
    if rng.random() < 0.5:
        return _letter_story(entity, rng)
    return _fog_story(entity, rng.choice([b for b in BOATS.values() if b.owner != entity.name]),
        rng)


def story_turn(rng: random.Random) -> Turn:
    person = rng.choice(list(PEOPLE.values()))
    boat = rng.choice(list(BOATS.values()))
    animal = rng.choice(list(ANIMALS.values()))
    kind = rng.random()
    if kind < 0.06:  # somebody that Larkhaven does not have
        ask = spin(_REQUEST + " about {a|the|two|my} {dragon|princess|robot|knight|wizard|space "
                              "ship|dinosaur|king|queen|pirate|ghost|unicorn|monster|detective|"
                              "girl called Anna|boy called Max|bear|lion|elephant|witch|wolf|"
                              "superhero|giant|elf|cowboy|football match|computer|prince|fairy|"
                              "whale|mermaid}", rng)
        return rough(ask, rng,
            is_question=False), "I only know stories from Larkhaven. " + _lost_story(ANIMALS["Admiral"], rng)
    if kind < 0.45:  # no subject asked for
        ask = spin(_REQUEST + "{|||| please| about Larkhaven| about the town| from Larkhaven| for "
                              "my child| to sleep}", rng)
        story = rng.choice([lambda: _lantern_story(PEOPLE["Bram"], rng),
            lambda: _fog_story(PEOPLE["Wren"], BOATS["Petrel"], rng),
                            lambda: _lost_story(animal, rng), lambda: _storm_story(PEOPLE["Sami"],
                                boat, rng), lambda: _cake_story(person, rng)])()
    elif kind < 0.65:
        ask = spin(_REQUEST + f" about {{{person.name}|{person.name}|{person.full}|"
                              f"the {person.role}}}", rng)
        story = story_about(person, rng)
    elif kind < 0.82:
        ask = spin(_REQUEST + f" about {{{animal.name}|{animal.name}|"
                              f"{animal.name} the {animal.kind}|the {animal.kind}|{{a|the}} "
                              f"{animal.kind}}}", rng)
        named = animal.name in ask or animal.kind not in ("dog", "cat")
        story = _lost_story(animal if named else ANIMALS["Biscuit" if animal.kind == "dog" else "Pepper"], rng)
    else:
        named = rng.random() < 0.75
        ask = spin(_REQUEST + (f" about {{the|the|}} {boat.name}" if named else " about {a boat|boats|the sea|a storm|the fog|the harbour|a ship|sailors|the regatta|a race}"), rng)
        if named:
            story = story_about(boat, rng)
        elif "fog" in ask:
            story = _fog_story(PEOPLE["Wren"], BOATS["Petrel"], rng)
        elif "race" in ask or "regatta" in ask:
            story = _race_story(BOATS["Acorn"], rng)
        else:
            story = _storm_story(PEOPLE["Sami"], BOATS["Petrel"], rng)
    return rough(ask, rng, is_question=False), story
