"""Events, the facts behind every sentence, and how to express them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tools.synthetic.lexicon import NEAR_VERBS, SAME, SAME_VERBS, TOPICS, Topic, Verb

NUMBERS = ("two", "three", "four", "five", "six", "seven", "nine", "ten", "twelve")


@dataclass(frozen=True)
class Event:
    """Who did what to which thing, and perhaps where, when and why.

    Empty strings mean that a detail is not mentioned.
    """

    topic: str
    agent: str
    agent_trait: str
    verb: Verb
    thing: str
    thing_trait: str
    number: str
    place: str
    time: str
    reason: str = ""


def plural(noun: str) -> str:
    """Return the regular plural of a noun."""
    if noun in ("loaf",):
        return "loaves"
    if noun.endswith("man"):
        return noun[:-2] + "en"
    if noun.endswith(("s", "sh", "ch", "x")) or noun in ("potato",):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def draw_event(rng: Random, topic: str | None = None, *, detail: float = 0.6) -> Event:
    """Draw an event; each adverbial is mentioned with probability `detail`."""
    name = topic or rng.choice(sorted(TOPICS))
    words = TOPICS[name]

    def maybe(options: tuple[str, ...], chance: float) -> str:
        return rng.choice(options) if rng.random() < chance else ""

    return Event(
        topic=name,
        agent=rng.choice(words.people),
        agent_trait=maybe(words.traits[:8], 0.4),
        verb=rng.choice(words.verbs),
        thing=rng.choice(words.things),
        thing_trait=maybe(words.traits[10:], 0.4),
        number=maybe(NUMBERS, 0.25),
        place=maybe(words.places, detail),
        time=maybe(words.times, detail),
        reason=maybe(words.reasons, detail / 3),
    )


def agent_phrase(event: Event) -> str:
    """Return the agent with its article."""
    return " ".join(filter(None, ["the", event.agent_trait, event.agent]))


def thing_phrase(event: Event) -> str:
    """Return the thing with its article or number."""
    noun = plural(event.thing) if event.number else event.thing
    return " ".join(filter(None, [event.number or "the", event.thing_trait, noun]))


def capital(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def say(event: Event, form: str) -> str:
    """Return a sentence: ``active``, ``fronted``, ``passive``, ``cleft`` or ``perfect``."""
    agent, thing = agent_phrase(event), thing_phrase(event)
    was = "were" if event.number else "was"
    place, time, reason = event.place, event.time, event.reason
    match form:
        case "fronted" if time or place:
            first, last = (time, place) if time else (place, "")
            body = [f"{first},", agent, event.verb.past, thing, last, reason]
        case "passive":
            body = [thing, was, event.verb.participle, "by", agent, place, time, reason]
        case "cleft":
            body = ["it was", agent, "who", event.verb.past, thing, place, time, reason]
        case "perfect":
            body = [agent, "had", event.verb.participle, thing, place, time, reason]
        case _:
            body = [agent, event.verb.past, thing, place, time, reason]
    return capital(" ".join(filter(None, body))) + "."


FORMS = ("active", "fronted", "passive", "cleft", "perfect")


def reword(event: Event, rng: Random, chance: float = 0.8) -> Event:
    """Return the same event in other words, wherever a word has a synonym."""

    def other(word: str) -> str:
        return SAME[word] if word in SAME and rng.random() < chance else word

    verb = event.verb
    if verb.base in SAME_VERBS and rng.random() < chance:
        verb = SAME_VERBS[verb.base]
    return replace(
        event,
        agent=other(event.agent),
        agent_trait=other(event.agent_trait),
        verb=verb,
        thing=other(event.thing),
        thing_trait=other(event.thing_trait),
        place=other(event.place),
        time=other(event.time),
    )


def alter(event: Event, rng: Random, slots: tuple[str, ...]) -> Event:
    """Return another event: each of `slots` that is mentioned gets another value of its kind."""
    words = TOPICS[event.topic]
    changed: dict[str, object] = {}
    for slot in slots:
        old = getattr(event, slot)
        if old:
            choices = [new for new in _choices(words, slot) if not _same(new, old)]
            changed[slot] = rng.choice(choices)
            if isinstance(old, Verb) and old.base == "refuse" and "thing" not in slots:
                # Refusing a thing denies every other action on it, instead of leaving it open.
                things = [new for new in words.things if not _same(new, event.thing)]
                changed["thing"] = rng.choice(things)
    return replace(event, **changed)  # type: ignore[arg-type]


def _same(first: object, second: object) -> bool:
    """Return whether two words are equal or synonyms, or the first implies or denies the other."""
    if isinstance(first, Verb) and isinstance(second, Verb):
        if first.base == "refuse" or {first.base, second.base} in NEAR_VERBS:
            return True
        others: tuple[object, object] = SAME_VERBS.get(first.base), SAME_VERBS.get(second.base)
    else:
        others = SAME.get(str(first)), SAME.get(str(second))
    return first == second or others[0] == second or others[1] == first


def forget(event: Event, slot: str) -> Event:
    """Return the event without the detail in `slot`."""
    return replace(event, **{slot: ""})  # type: ignore[arg-type]


def _choices(words: Topic, slot: str) -> tuple[object, ...]:
    return {
        "agent": words.people,
        "verb": words.verbs,
        "thing": words.things,
        "number": NUMBERS,
        "place": words.places,
        "time": words.times,
        "reason": words.reasons,
    }[slot]


def scenery(rng: Random, topic: str, most: int = 5) -> tuple[list[str], list[str]]:
    """Return sentences without facts, to put before and after; none in about half the cases."""
    count = min(most, int(rng.expovariate(0.9)))
    scenes = rng.sample(TOPICS[topic].scenes, count)
    cut = rng.randint(0, count)
    return scenes[:cut], scenes[cut:]


def wrap(rng: Random, topic: str, sentence: str, most: int = 5) -> str:
    """Return the sentence with scenery around it."""
    before, after = scenery(rng, topic, most)
    return " ".join([*before, sentence, *after])
