"""Words of the synthetic tasks, by topic, and their synonyms."""

from __future__ import annotations

from dataclasses import dataclass


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


@dataclass(frozen=True)
class Verb:
    """A transitive verb: base form, past tense and participle."""

    base: str
    past: str
    participle: str

    @property
    def third(self) -> str:
        """Third person singular of the present tense."""
        if self.base.endswith(("s", "sh", "ch", "x", "z")):
            return self.base + "es"
        if self.base.endswith("y") and self.base[-2] not in "aeiou":
            return self.base[:-1] + "ies"
        return self.base + "s"


def _verbs(text: str) -> tuple[Verb, ...]:
    """Parse ``base/past/participle``; a single form after the slash is both of them."""
    verbs = []
    for entry in _words(text):
        forms = entry.split("/")
        base = forms[0]
        past = forms[1] if len(forms) > 1 else base + ("d" if base.endswith("e") else "ed")
        verbs.append(Verb(base, past, forms[2] if len(forms) > 2 else past))
    return tuple(verbs)


@dataclass(frozen=True)
class Topic:
    """A topic with its people, things, actions and places.

    Attributes
    ----------
    people, things, places, times
        Nouns for agents; nouns for objects, each with a regular plural; adverbials.
    verbs
        What people do to things.
    traits
        Adjectives of people and things that say nothing good or bad.
    reasons
        Subordinate clauses.
    scenes
        Whole sentences that add length and topic but no fact of interest.
    aspects
        What a review praises or blames.
    """

    people: tuple[str, ...]
    things: tuple[str, ...]
    verbs: tuple[Verb, ...]
    places: tuple[str, ...]
    times: tuple[str, ...]
    traits: tuple[str, ...]
    reasons: tuple[str, ...]
    scenes: tuple[str, ...]
    aspects: tuple[str, ...]


KITCHEN = Topic(
    people=_words(
        "cook, baker, waiter, butcher, guest, grocer, brewer, farmer, hostess, gardener, "
        "customer, grandmother, student, critic, neighbor, servant, landlord, aunt"
    ),
    things=_words(
        "soup, cake, pie, sauce, salad, cheese, pudding, sandwich, stew, pepper, onion, potato, "
        "apple, egg, steak, chicken, lemon, carrot, meal, dessert, breakfast, dinner, loaf, "
        "sausage, pancake"
    ),
    verbs=_verbs(
        "bake, boil, fry/fried, taste, serve, slice, season, burn, order, prepare, eat/ate/eaten, "
        "share, freeze/froze/frozen, chop/chopped, cook, mix, heat, buy/bought, spoil, refuse"
    ),
    places=_words(
        "in the kitchen, at the restaurant, in the bakery, at the market, in the dining room, "
        "behind the counter, near the stove, in the cafe, in the cellar, at the farm, "
        "beside the oven, in the garden, at the hotel, at the wedding"
    ),
    times=_words(
        "on Monday, on Friday, last night, before lunch, after dinner, in the morning, at noon, "
        "this week, in the evening, during the festival, yesterday, last winter, on Sunday, "
        "before the party"
    ),
    traits=_words(
        "young, old, tall, hungry, French, Italian, local, busy, quiet, large, small, hot, cold, "
        "red, green, white, sweet, plain, round, thick"
    ),
    reasons=_words(
        "because the guests were hungry, because the oven was still warm, "
        "although nobody had asked for it, while the bread was rising, because milk was cheap, "
        "although the menu was long, since the tables were full, while the coffee was brewing, "
        "because the recipe said so, although the plates were dirty"
    ),
    scenes=(
        "The smell of fresh bread filled the room.",
        "A pot of rice stood on the stove.",
        "There was butter and sugar on the table.",
        "The menu listed wine, beef and fish.",
        "Plates and glasses stood on every shelf.",
        "The kitchen was warm and full of steam.",
        "A basket of fruit lay beside the sink.",
        "Somebody had left the oven open.",
        "The coffee was ready and the tea was hot.",
        "Flour covered the whole floor.",
        "The restaurant opens at six and closes at ten.",
        "Garlic and onions hung from the ceiling.",
    ),
    aspects=_words(
        "food, menu, kitchen, soup, service, bread, wine, dessert, coffee, recipe, dinner, waiter, "
        "chef, sauce, table, breakfast, taste, meat, salad, cake"
    ),
)

HARBOR = Topic(
    people=_words(
        "sailor, captain, pilot, fisherman, admiral, diver, passenger, engineer, officer, "
        "merchant, pirate, soldier, crew member, fleet commander, guard, mechanic, navigator, "
        "inspector"
    ),
    things=_words(
        "ship, boat, anchor, engine, rope, net, flag, sail, mast, lifeboat, cargo crate, map, "
        "cannon, radio, deck, cabin, hull, barrel, ferry, submarine, compass, tank, pump, chain, "
        "signal lamp"
    ),
    verbs=_verbs(
        "repair, load, steer, paint, tow, inspect, abandon, sink/sank/sunk, launch, clean, guard, "
        "sell/sold, rescue, damage, follow, lower, lift, hide/hid/hidden, capture, test"
    ),
    places=_words(
        "in the harbor, on the island, at the dock, near the lighthouse, off the coast, "
        "on the beach, in the bay, in the shipyard, on the river, under the bridge, at the port, "
        "along the shore, in the channel, near the reef"
    ),
    times=_words(
        "on Tuesday, on Thursday, at midnight, before the storm, after the battle, at dawn, "
        "at high tide, last summer, in the afternoon, during the voyage, on Saturday, last month, "
        "in the fog, before sunset"
    ),
    traits=_words(
        "young, old, tall, naval, British, Spanish, royal, brave, heavy, wooden, large, small, "
        "blue, black, gray, iron, long, wet, rusty, deep"
    ),
    reasons=_words(
        "because the storm was near, because the wind was strong, although the sea was calm, "
        "while the waves were rising, because the fleet was late, although the water was deep, "
        "since the crew was tired, while the tide was falling, because the orders said so, "
        "although the fog was thick"
    ),
    scenes=(
        "The waves broke against the rocks.",
        "A cold wind blew from the sea.",
        "Gulls circled above the water.",
        "The fleet lay at anchor in the bay.",
        "Two ships waited outside the port.",
        "The tide was low and the sand was wet.",
        "Salt water covered the whole deck.",
        "Somebody had lit the lamp in the lighthouse.",
        "The river was wide and the current was strong.",
        "Fog hung over the coast.",
        "The ferry leaves at six and returns at ten.",
        "Ropes and chains lay along the pier.",
    ),
    aspects=_words(
        "ship, voyage, cabin, crew, boat, harbor, ferry, captain, deck, engine, cruise, beach, "
        "sail, ocean view, pilot, anchor, island, rope, radio, journey"
    ),
)

TOPICS: dict[str, Topic] = {"kitchen": KITCHEN, "harbor": HARBOR}

GOOD = _words(
    "good, great, wonderful, excellent, lovely, perfect, pleasant, charming, brilliant, superb, "
    "impressive, delightful, beautiful, enjoyable, fine, remarkable, amazing, friendly, fresh, "
    "reliable, clever, elegant, generous, splendid, terrific, fantastic, memorable, superior, "
    "honest, gentle, comfortable, satisfying, refreshing, gorgeous, thrilling, magnificent, "
    "flawless, touching, fascinating, admirable, outstanding, marvelous, polished, inspired, "
    "welcoming, graceful, first-rate, worthwhile, cheerful, tasteful, exquisite, skillful"
)
BAD = _words(
    "bad, awful, terrible, poor, dull, horrible, unpleasant, weak, boring, ugly, disappointing, "
    "dirty, miserable, useless, annoying, dreadful, painful, broken, rude, worthless, "
    "stupid, messy, careless, shabby, tedious, pathetic, clumsy, inferior, dishonest, harsh, "
    "uncomfortable, frustrating, stale, hideous, lifeless, ridiculous, flawed, tasteless, "
    "tiresome, shameful, mediocre, lousy, sloppy, uninspired, hostile, awkward, second-rate, "
    "pointless, gloomy, bland, disgusting, incompetent"
)
LIKE = _words("loved, enjoyed, admired, praised, liked, recommended")
DISLIKE = _words("hated, regretted, disliked, blamed, rejected, criticized")

SAME: dict[str, str] = {
    "cook": "chef",
    "guest": "visitor",
    "customer": "buyer",
    "grocer": "shopkeeper",
    "student": "pupil",
    "servant": "maid",
    "sailor": "seaman",
    "captain": "skipper",
    "guard": "watchman",
    "merchant": "trader",
    "soldier": "trooper",
    "meal": "dish",
    "sandwich": "roll",
    "boat": "vessel",
    "map": "chart",
    "rope": "cable",
    "cannon": "gun",
    "young": "youthful",
    "old": "aged",
    "large": "big",
    "small": "little",
    "quiet": "silent",
    "brave": "bold",
    "thick": "dense",
    "in the morning": "before noon",
    "last night": "yesterday evening",
    "at dawn": "at sunrise",
    "at midnight": "in the middle of the night",
    "in the cafe": "at the coffee house",
    "at the dock": "at the pier",
    "along the shore": "along the coast",
    "at the port": "in port",
}
"""Synonyms of nouns, traits and adverbials."""

SAME_VERBS: dict[str, Verb] = {
    "prepare": Verb("make", "made", "made"),
    "buy": Verb("purchase", "purchased", "purchased"),
    "mix": Verb("blend", "blended", "blended"),
    "slice": Verb("cut", "cut", "cut"),
    "order": Verb("request", "requested", "requested"),
    "spoil": Verb("ruin", "ruined", "ruined"),
    "refuse": Verb("reject", "rejected", "rejected"),
    "share": Verb("divide", "divided", "divided"),
    "repair": Verb("fix", "fixed", "fixed"),
    "inspect": Verb("examine", "examined", "examined"),
    "guard": Verb("protect", "protected", "protected"),
    "rescue": Verb("save", "saved", "saved"),
    "damage": Verb("harm", "harmed", "harmed"),
    "abandon": Verb("leave", "left", "left"),
    "lift": Verb("raise", "raised", "raised"),
    "capture": Verb("seize", "seized", "seized"),
    "clean": Verb("wash", "washed", "washed"),
}
"""Synonyms of verbs, by base form."""

NEAR_VERBS = (
    {"chop", "slice"},
    {"eat", "taste"},
    {"burn", "spoil"},
    *({"cook", other} for other in ("bake", "boil", "fry", "heat", "prepare")),
    *({"prepare", other} for other in ("bake", "boil", "fry", "mix", "season", "heat")),
    {"order", "buy"},
    {"damage", "sink"},
)
"""Pairs of verbs (base forms) whose actions overlap, so that neither contradicts the other."""
