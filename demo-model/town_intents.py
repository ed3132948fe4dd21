"""Hand-written questions about Larkhaven: errands, the ferry, lists, weather, feasts.

Where an answer lists things, it lists them from `world.py`.
"""

from __future__ import annotations

from grammar import sentence
from intents import Intent
from world import BOATS, EVENTS, STREETS, TOWN, WEATHER, join_words

_WHAT = "{what is|what's|tell me about|what do you know about|describe|what can you tell me about}"

_ERRANDS: list[tuple[str, str]] = [
    ("{where can I|where do I|who sells|I want to} {buy|get} {|some }{bread|a loaf|plum cake|cake|"
     "jam buns|something sweet|breakfast}",
     "At the bakery in Harbour Square. Mira Holt bakes bread, jam buns and plum cake there."),
    ("{where can I|where do I|I want to} {buy|get} {vegetables|carrots|honey|fresh fish|fish}",
        "At the market in Harbour Square, on Saturdays from eight to noon."),
    ("{where can I|where do I} {eat|have dinner|get food|sleep|stay|find a bed|spend the night|"
     "drink something|get a meal}{| in Larkhaven}",
     "At the Blue Anchor inn, beside the main pier. Felix cooks fish stew and tells jokes."),
    ("{where can I|where do I|I want to} {borrow a book|find a book|read|get books}",
        "At the library in Hill Street. Lotte Finch lends three books at a time."),
    ("{where can I|where do I|I want to} {send a letter|post a letter|send a parcel|buy a stamp}",
        "At the post office in Bell Lane. Tilda Rowe brings the letters to every door."),
    ("{where can I|who can|where do I get somebody to} {mend a boat|repair my boat|fix a boat|"
     "build a boat|have a boat built}",
     "Go to the boatyard at the end of Mill Road. Oren Pike builds and mends boats."),
    ("{where can I|who can|who should I see to} {mend a net|fix my net|have a net mended|repair a "
     "broken net}{| my net is broken}",
     "Go to the net loft in Net Street. Bram Harker mends the fishing nets."),
    ("{where can I|where do I} {buy an anchor|get an anchor|get a horseshoe}",
        "At the forge in Mill Road. Ivo Stern makes anchors and horseshoes."),
    ("{where can I swim|where can I look for crabs|where can children play|where can I fly a kite|"
     "is there a beach}",
     "At the small beach, south of the piers. Mind the tide: it covers the beach twice a day."),
    ("{I am ill in Larkhaven|who helps when somebody is ill|where is the hospital in Larkhaven|"
     "where can I see a doctor in Larkhaven|is there a doctor in Larkhaven|who do I see when I am "
     "sick in Larkhaven}",
     "Go to the clinic in Hill Street, next to the school. Doctor Ilan Reed is there every morning "
     "from eight to twelve."),
    ("{when does the ferry leave|when does the ferry go|what are the ferry times|ferry times|ferry "
     "timetable|how often does the ferry go|when is the next ferry|at what time is the ferry|when "
     "does the Swallow leave}",
     "The ferry leaves at eight, at noon and at five. It takes half an hour to Gull Island."),
    ("{how much is the ferry|what does the ferry cost|what does a ticket cost|ferry price|how much "
     "is a ticket|price of the ferry}",
     "A ticket for the ferry costs two coins. Children ride free."),
    ("{how do I get to Gull Island|how can I reach the island|where does the ferry go|how long "
     "does the ferry take|how far is Gull Island}",
     "Take the ferry Swallow from the main pier. It leaves at eight, at noon and at five, and "
     "takes half an hour to Gull Island."),
    ("{who helps Oren|who is the apprentice|who works for Oren|does Oren have an apprentice}",
        "Sami Lund is the apprentice at the boatyard. He helps Oren and whistles sailor songs."),
    ("{who won the regatta|which boat won the regatta|who won the race last year|which is the "
     "fastest boat|what is the fastest boat|which boat wins races}",
     "The green Kestrel won the last Regatta. It belongs to Oren Pike, the boat builder."),
    ("{who is the oldest|who is the oldest person|which person is the oldest|oldest person}{| in "
     "Larkhaven| in town}", "Bram Harker, the net mender, is the oldest: he is 78."),
    ("{who is the youngest|who is the youngest person|which person is the youngest|youngest "
     "person}{| in Larkhaven| in town}", "Wren Holt is the youngest that I know: she is 10."),
    ("{which is the oldest boat|what is the oldest boat|which boat never leaves the harbour|which "
     "boat is old}",
     "The Patience, Bram's brown trawler, is the oldest boat. It never leaves the harbour."),
    ("{what do people eat in Larkhaven|what is the food like|what is Larkhaven famous for|what is "
     "the town known for|what is the local dish}",
     "Larkhaven is known for Mira's plum cake, Felix's fish stew and smoked herring."),
    ("{what can I do in Larkhaven|what is there to do|what should I see in Larkhaven|what should I "
     "do in Larkhaven|I am visiting Larkhaven|plan a day in Larkhaven|what is worth seeing|things "
     "to do}",
     "Eat plum cake at the bakery, climb the lighthouse on a Sunday afternoon, and take the ferry "
     "to Gull Island to watch the seals. In the evening Felix tells jokes at the Blue Anchor."),
    ("{what is a typical day in Larkhaven|what happens in the morning|describe a day in the town|"
     "how does the day start in Larkhaven|a day in Larkhaven}",
     "Before sunrise the Petrel goes out for herring. At six Mira opens the bakery, at eight the "
     "ferry leaves, and at dusk Edda lights the great lamp."),
    ("{are Mira and Tomas related|how are Mira and Tomas related|are Tomas and Mira married|is "
     "Tomas the brother of Mira|is Mira the sister of Tomas}",
     "Mira and Tomas Holt are sister and brother. Wren is the daughter of Tomas."),
    ("{are Edda and Bram related|how are Edda and Bram related|is Bram the brother of Edda}",
        "Edda Vance and Bram Harker are sister and brother."),
    ("{who can tell me the weather|who knows the weather|who foretells the weather|how does Bram "
     "know the weather}", "Bram Harker, the net mender, foretells the weather with his knee."),
    ("{where do the boats lie|where is the harbour|what is the harbour like|tell me about the "
     "harbour|how many piers are there|describe the harbour}",
     "The harbour lies in front of Harbour Square. It has three piers: the north pier, the main "
     "pier and the south pier."),
    ("{how many steps does the lighthouse have|how high is the lighthouse|how tall is the "
     "lighthouse}", "The lighthouse has 99 steps. From the top you can look over the whole bay."),
    ("{when can I go up the lighthouse|when can I climb the lighthouse|can I go up the lighthouse|"
     "can visitors see the lighthouse|when may I visit the lighthouse}",
     "Visitors can climb the lighthouse on Sunday afternoons. The lamp is lit at dusk."),
    ("{when is the bakery closed|is the bakery open on Monday|which day is the bakery closed|is "
     "the bakery ever closed}",
     "The bakery opens at six in the morning and closes at two. It is closed on Mondays."),
    ("{which boat goes to Gull Island|which boat would you take to Gull Island|what boat do I take "
     "to the island|which boat carries people|which boat is the ferry|what is the ferry called}",
     "That is the Swallow, a white ferry. It belongs to Ruth Amsel."),
    ("{name three people|give me three names|tell me three people|give me three names of people in "
     "Larkhaven|name three people in Larkhaven|name a person|name somebody}",
     "Three people of Larkhaven are Mira the baker, Tomas the fisherman and Edda the lighthouse "
     "keeper."),
    ("{who can build me a boat|who should I ask for a boat|who can help with a broken boat}",
        "Go to the boatyard at the end of Mill Road. Oren Pike builds and mends boats."),
    ("{who has children|who is married|who is related to whom|tell me about the families|which "
     "people are family}",
     "Mira and Tomas Holt are sister and brother, and Wren is the daughter of Tomas. Edda Vance "
     "and Bram Harker are sister and brother too."),
    ("{who has the most animals|which animal is the proudest|which animal is the best|which is "
     "your favourite animal|which animal is dangerous}",
     "Beware of Admiral, the white goose of Juno Marsh: he chases strangers off the quay."),
    ("{who lights the lamp|when is the lamp lit|when does the lighthouse shine}",
        "Edda Vance lights the great lamp of the lighthouse every evening at dusk."),
]

TOWN_INTENTS: list[Intent] = [Intent([q], [a]) for q, a in _ERRANDS] + [
    Intent([f"{_WHAT} {{{TOWN}|the town|the harbour town|this town|your town|your world}}",
            f"where is {TOWN}", TOWN, "what kind of town is it", "tell me about your world",
            "describe your world", "what is the town called", "which town do you know",
            "what is the name of the town", f"what is {TOWN} like"],
           [f"{TOWN} is a small harbour town on a green bay. About four hundred people live there, "
            f"with a lighthouse, a market, eight boats and a very proud goose."], weight=5),
    Intent([f"how many people live in {{{TOWN}|the town}}",
            f"how {{big|large|small}} is {{{TOWN}|the town}}",
            "what is the population of Larkhaven"],
           [f"About four hundred people live in {TOWN}. I know sixteen of them by name."],
            weight=2),
    Intent([f"{{who lives in {TOWN}|who lives there|list the people|which people do you know|"
            f"who do you know|name some people|name the people|tell me about the people|who are "
            f"the people of {TOWN}|list all people|who else lives there|give me some names|"
            f"people}}"],
           [f"I know sixteen people in {TOWN}, among them Mira the baker, Tomas the fisherman, "
            f"Edda the lighthouse keeper, Oren the boat builder, Nessa the teacher, Ruth the ferry "
            f"captain, Ilan the doctor and Juno the harbour master."], weight=4),
    Intent(["{list|name|list all|tell me} the boats",
            f"{{which|what}} boats {{are there|do you know|are in the harbour|are in {TOWN}}}",
            "tell me about the boats", "how many boats are there", "how many boats do you know",
            "what are the boats called", "name some boats", "list all boats", "boats",
            "what ships are there", "name a boat"],
           [f"There are eight boats in {TOWN}: the {', the '.join(list(BOATS)[:-1])} and the "
            f"{list(BOATS)[-1]}."], weight=4),
    Intent(["{list|name|list all|tell me} the animals",
            f"{{which|what}} animals {{are there|do you know|live in {TOWN}}}",
            "tell me about the animals", "how many animals are there", "what pets are there",
            "name some animals", "animals", "list the pets", "are there animals", "name an animal"],
           ["Among the animals I know are Pepper the cat, Biscuit the dog, Captain the parrot, "
            "Thistle the donkey, Button the tortoise, Admiral the goose and Mister Grey the "
            "seagull."], weight=4),
    Intent(["{list|name|list all} the places",
            f"{{which|what}} places {{are there|do you know|can I visit|are in {TOWN}}}",
            "tell me about the places", "what is there in Larkhaven", "what buildings are there",
            "what can I visit", "where can I go", "what shops are there", "name some places",
            "places", "what is in the town"],
           [f"In {TOWN} there are the bakery, the market, the Blue Anchor inn, the harbour office, "
            f"the school, the library, the clinic, the post office, the forge, the boatyard, the "
            f"net loft and the lighthouse."], weight=4),
    Intent(["{list|name|which are} the {events|feasts|holidays|festivals}",
            "{which|what} {events|feasts|festivals|holidays} {are there|do you know|do they have}",
            "what do they celebrate", "when are the feasts", "what happens during the year",
            "are there any {festivals|events|parties}", "events", "tell me about the feasts"],
           ["The year has five feasts: First Bread on New Year's Day, the Spring Clean in April, "
            "the Regatta in July, the Herring Feast in October and Lantern Night in November."],
            weight=3),
    Intent(["{list|name|which are} the streets", "which streets are there",
            "how many streets are there", "what are the streets called", "streets"],
           [f"The streets of {TOWN} are {join_words(STREETS)}."], weight=1.5),
    Intent(["{list|name|what are} the {trades|jobs|professions}", "which {trades|jobs} are there",
            "what do people do in Larkhaven", "what jobs do people have",
            "how do people earn their living"],
           [f"The people of {TOWN} work as baker, fisherman, boat builder, ferry captain, "
            f"blacksmith, net mender, teacher, doctor, librarian and more."], weight=1.5),
    Intent(["what is the weather like{| in Larkhaven}", "how is the weather in Larkhaven",
            "tell me about the weather", "weather", "does it rain in Larkhaven",
            "how is the climate", "is it cold in Larkhaven",
            "what is the weather in Larkhaven today"],
           [f"{TOWN} is windy and bright in spring, warm with morning fog in summer, stormy in "
            f"autumn, and cold and grey in winter."], weight=2),
    Intent(["how many {dogs|cats} are there", "which dogs are there", "list the dogs",
            "name the dogs", "tell me about the dogs"],
           ["There are three dogs in Larkhaven, Biscuit, Barley and Stamp, and two cats, Pepper "
            "and Comma."], weight=1),
    Intent(["how many days {are in a week|does a week have}", "what are the days of the week",
            "list the days of the week", "name the weekdays"],
           ["The seven days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday "
            "and Sunday."], weight=1),
    Intent(["what are the {four seasons|seasons}", "how many seasons are there",
            "list the seasons"],
           ["There are four seasons: spring, summer, autumn and winter."], weight=1),
]

for _season, _text in WEATHER.items():
    TOWN_INTENTS.append(Intent([f"what is the weather like in {_season}",
        f"how is {_season}{{| in Larkhaven}}", f"weather in {_season}",
        f"what happens in {_season}", f"is it {{cold|warm|windy|nice}} in {_season}",
        f"tell me about {_season}", f"does it {{snow|rain|storm}} in {_season}",
        f"what is {_season} like"], [_text]))


def _event_intents() -> list[Intent]:
    intents = []
    for e in EVENTS:
        name = e.name
        title = sentence(name)
        intents.append(Intent([f"{_WHAT} {name}", f"what happens {{at|on|during}} {name}",
            f"when is {name}", f"tell me about {name}", f"{name}", f"what happens {e.when}",
            f"which feast is {e.when}", f"when do they celebrate {name}",
            f"what do people do at {name}", f"is there a feast {e.when}"],
                              [f"{title} is {e.when}: {e.what}."]))
    return intents


TOWN_INTENTS += _event_intents()
