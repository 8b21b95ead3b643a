"""Tasks of one sentence: sentiment and acceptability."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tools.synthetic.events import (
    FORMS,
    agent_phrase,
    capital,
    draw_event,
    plural,
    say,
    thing_phrase,
    wrap,
)
from tools.synthetic.lexicon import BAD, DISLIKE, GOOD, LIKE, TOPICS, Topic

Row = tuple[str, str | None]
MASS = frozenset({"food", "bread", "meat", "wine", "coffee", "service"})
"""Aspects that take no article "a"."""
_OF_ONE = ("every", "each", "this", "one")
_OF_MANY = ("those", "these", "many", "several")


def sentiment(rng: Random, label: int) -> Row:
    """Return a review of the topic; 0 negative, 1 positive.

    Some say it with an adjective or a verb; some negate it; some weigh a drawback against an
    advantage, where the clause without "although" decides; some name three points, where the
    majority decides.
    """
    name = rng.choice(sorted(TOPICS))
    return wrap(rng, name, _review(rng, name, bool(label)), most=4), None


def _review(rng: Random, topic: str, positive: bool) -> str:
    kinds = (_plain, _verbal, _negated, _weighed, _counted)
    return rng.choices(kinds, (30, 10, 20, 25, 15))[0](rng, TOPICS[topic], positive)


def _praise(rng: Random, positive: bool) -> str:
    return _words(rng, positive, 1)[0]


def _a(word: str) -> str:
    """Return the word with its indefinite article."""
    vowel = word[0] in "aeiou" and word != "useless"
    return f"{'an' if vowel or word == 'honest' else 'a'} {word}"


def _words(rng: Random, positive: bool, count: int) -> list[str]:
    """Return distinct words of praise or blame; words later in the list are rarer."""
    pool = GOOD if positive else BAD
    chosen: dict[str, None] = {}
    while len(chosen) < count:
        chosen[pool[int(len(pool) * rng.random() ** 1.7)]] = None
    return list(chosen)


def _plain(rng: Random, words: Topic, positive: bool) -> str:
    first, second = rng.sample(words.aspects, 2)
    word, other = _words(rng, positive, 2)
    frames: tuple[str, ...] = (
        f"The {first} was {word}.",
        f"The {first} was {word} and the {second} was {other}.",
        f"We found the {first} {word} {rng.choice(words.places)}.",
        f"Everything about the {first} and the {second} is really {word}.",
        f"The {rng.choice(words.people)} told us that the {first} had been {word}.",
        f"{capital(rng.choice(words.times))}, the {first} seemed {word} to me.",
    )
    if first not in MASS:
        frames += (
            f"It was {_a(word)}, {other} {first}, as everybody said.",
            f"What {_a(word)} {first}!",
        )
    return rng.choice(frames)


def _verbal(rng: Random, words: Topic, positive: bool) -> str:
    verb = rng.choice(LIKE if positive else DISLIKE)
    frames = (
        f"The {rng.choice(words.people)} {verb} the {rng.choice(words.aspects)}.",
        f"I {verb} the {rng.choice(words.aspects)} {rng.choice(words.places)}.",
        f"Everybody {verb} the {rng.choice(words.aspects)} {rng.choice(words.times)}.",
    )
    return rng.choice(frames)


def _negated(rng: Random, words: Topic, positive: bool) -> str:
    word, aspect = _praise(rng, not positive), rng.choice(words.aspects)
    frames = (
        f"The {aspect} was not {word} at all.",
        f"Nobody would call the {aspect} {word}.",
        f"The {aspect} was never {word} {rng.choice(words.places)}.",
    )
    return rng.choice(frames)


def _weighed(rng: Random, words: Topic, positive: bool) -> str:
    first, second = rng.sample(words.aspects, 2)
    minor, major = _praise(rng, not positive), _praise(rng, positive)
    had = f"the {second} was {major}" if second in MASS else f"we had {_a(major)} {second}"
    frames = (
        f"Although the {first} was {minor}, the {second} was {major}.",
        f"The {second} was {major}, although the {first} was {minor}.",
        f"Even if the {first} seemed {minor}, {had}.",
    )
    return rng.choice(frames)


def _counted(rng: Random, words: Topic, positive: bool) -> str:
    signs = [positive, positive, not positive]
    rng.shuffle(signs)
    parts = []
    for aspect, sign in zip(rng.sample(words.aspects, 3), signs, strict=True):
        if rng.random() < 0.25:
            parts.append(f"the {aspect} was not {_praise(rng, not sign)}")
        else:
            parts.append(f"the {aspect} was {_praise(rng, sign)}")
    return capital(f"{parts[0]}, {parts[1]} and {parts[2]}.")


def acceptability(rng: Random, label: int) -> Row:
    """Return a sentence in good grammar (1) or with one fault (0).

    Half of the sentences are reviews like those of `sentiment`: what decides in one task must
    not decide in the other.
    """
    name = rng.choice(sorted(TOPICS))
    build = rng.choices(
        (_judged, _agreement, _tense, _order, _determiner, _present),
        (90, 3, 6, 45, 62, 2),
    )[0]
    return wrap(rng, name, build(rng, name, bool(label)), most=1), None


def _agreement(rng: Random, topic: str, good: bool) -> str:
    words = TOPICS[topic]
    many = rng.random() < 0.5
    noun = rng.choice((*words.things, *words.people))
    verb = ("were", "was") if many else ("was", "were")
    head = f"the {plural(noun) if many else noun}"
    if rng.random() < 0.3:
        head += f" {rng.choice(words.places)}"
    tail = " ".join([rng.choice(words.traits), rng.choice((*words.times, *words.reasons))])
    return capital(f"{head} {verb[0] if good else verb[1]} {tail}.")


def _tense(rng: Random, topic: str, good: bool) -> str:
    event = draw_event(rng, topic)
    verb = event.verb
    auxiliary, right, wrong = rng.choice(
        (
            ("had", verb.participle, verb.base),
            ("will", verb.base, verb.past),
            ("did not", verb.base, verb.past),
            ("can", verb.base, verb.third),
            ("wanted to", verb.base, verb.participle),
        )
    )
    parts = [agent_phrase(event), auxiliary, right if good else wrong, thing_phrase(event)]
    time = "" if auxiliary in ("will", "can") else event.time
    return capital(" ".join(filter(None, [*parts, event.place, time, event.reason]))) + "."


def _order(rng: Random, topic: str, good: bool) -> str:
    sentence = say(draw_event(rng, topic), rng.choice(FORMS))
    return sentence if good else _scrambled(rng, sentence)


def _judged(rng: Random, topic: str, good: bool) -> str:
    review = _review(rng, topic, rng.random() < 0.5)
    if good:
        return review
    swaps = {" was ": " were ", " seemed ": " seeming ", " had been ": " had be "}
    possible = [old for old in swaps if old in review and "crew" not in review]
    if possible and rng.random() < 0.15:
        old = rng.choice(possible)
        return review.replace(old, swaps[old])
    return _scrambled(rng, review)


def _scrambled(rng: Random, sentence: str) -> str:
    """Return the sentence with some words shuffled; commas stay with their words."""
    tokens, end = sentence[:-1].split(), sentence[-1]
    if tokens[0] != "I":
        tokens[0] = tokens[0].lower()
    place = rng.randrange(max(1, len(tokens) - 7))
    window = tokens[place : place + 8]
    while window == tokens[place : place + 8]:
        rng.shuffle(window)
    tokens[place : place + 8] = window
    return capital(" ".join(tokens)).rstrip(",") + end


def _determiner(rng: Random, topic: str, good: bool) -> str:
    event = draw_event(rng, topic)
    kinds = [_OF_ONE, _OF_MANY]
    many = rng.random() < 0.5
    doubled = not good and rng.random() < 0.9
    word = rng.choice(kinds[many if good or doubled else not many]) + " the" * doubled
    noun = plural(event.agent) if many else event.agent
    agent = " ".join(filter(None, [word, event.agent_trait, noun]))
    parts = [agent, event.verb.past, thing_phrase(event), event.place, event.time, event.reason]
    return capital(" ".join(filter(None, parts))) + "."


def _present(rng: Random, topic: str, good: bool) -> str:
    event = draw_event(rng, topic)
    many = rng.random() < 0.5
    agent = plural(event.agent) if many else event.agent
    forms = (event.verb.base, event.verb.third) if many else (event.verb.third, event.verb.base)
    quantity = ("all" if many else "each") if rng.random() < 0.3 else "the"
    parts = [quantity, agent, forms[0] if good else forms[1], thing_phrase(event), event.place]
    return capital(" ".join(filter(None, [*parts, event.reason]))) + "."


SINGLE: dict[str, Callable[[Random, int], Row]] = {
    "sentiment": sentiment,
    "acceptability": acceptability,
}
