"""Tasks of two texts: paraphrase, question and answer, entailment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tools.synthetic.events import (
    FORMS,
    Event,
    agent_phrase,
    alter,
    capital,
    draw_event,
    forget,
    reword,
    say,
    thing_phrase,
    wrap,
)
from tools.synthetic.lexicon import TOPICS

Row = tuple[str, str | None]
_CORE = ("agent", "verb", "thing")
_EXTRA = ("place", "time", "number")


_VAGUE = frozenset(
    {
        "in the fog", "during the voyage", "after the battle", "before the battle",
        "before the storm", "during the festival", "before the party", "at the wedding",
    }
)  # fmt: skip
"""Adverbials that may be understood as a time or as a place."""


def _two_forms(rng: Random, event: Event) -> tuple[str, str]:
    """Return two forms; without an adverbial, "fronted" would equal "active"."""
    first, second = rng.sample([f for f in FORMS if f != "fronted" or event.time or event.place], 2)
    return first, second


def paraphrase(rng: Random, label: int) -> Row:
    """Return two sentences about the same event (1) or different ones (0).

    Different events differ in one or two words, in everything, or even in their topic.
    """
    event = draw_event(rng)
    first, second = _two_forms(rng, event)
    other = reword(event, rng, 0.6)
    if not label:
        other = _other(rng, other, tuple(rng.sample(_CORE, rng.choice((1, 2)))))
    scenes = rng.random() < 0.4
    right = say(other, second)
    left = say(event, first)
    return (wrap(rng, event.topic, left, most=2) if scenes else left), right


def _other(rng: Random, event: Event, slots: tuple[str, ...], far: float = 0.25) -> Event:
    """Return another event: of another topic (share `far`), of this one, or with other `slots`."""
    kind = rng.random()
    if kind < far:
        return draw_event(rng, rng.choice([t for t in sorted(TOPICS) if t != event.topic]))
    if kind < far + 0.3:
        return alter(draw_event(rng, event.topic), rng, _CORE)
    return alter(event, rng, slots)


def _question(event: Event, slot: str) -> str:
    agent, thing, verb = agent_phrase(event), thing_phrase(event), event.verb
    return {
        "agent": f"Who {verb.past} {thing}?",
        "thing": f"What did {agent} {verb.base}?",
        "place": f"Where did {agent} {verb.base} {thing}?",
        "time": f"When did {agent} {verb.base} {thing}?",
        "reason": f"Why did {agent} {verb.base} {thing}?",
        "number": f"How many {thing.removeprefix(event.number).strip()} did {agent} {verb.base}?",
    }[slot]


def answer(rng: Random, label: int) -> Row:
    """Return a question and a text that answers it (1) or not (0).

    A third of the texts that do not answer describe the event without the detail that the question
    asks for, if it can be left out; the others describe another event.
    """
    event = draw_event(rng, detail=0.8)
    slots = [s for s in (*_CORE[::2], *_EXTRA, "reason") if getattr(event, s)]
    if not event.reason.startswith(("because", "since")):  # "although" answers no "why"
        slots = [s for s in slots if s != "reason"]
    slot = rng.choice(slots)
    question = _question(event, slot)
    form = rng.choice(FORMS)
    if label:
        text_event = event
    elif slot in ("place", "time", "reason") and rng.random() < 0.35:
        text_event = forget(event, slot)
        if slot == "time" and event.reason.startswith("while"):
            text_event = forget(text_event, "reason")
        for other in ("place", "time"):
            if getattr(text_event, other) in _VAGUE:
                text_event = forget(text_event, other)
    else:
        rest = tuple(s for s in _CORE if s != slot)
        text_event = _other(rng, event, (rng.choice(rest),), far=0.5)
    return question, wrap(rng, text_event.topic, say(text_event, form), most=4)


def _entailed(rng: Random, event: Event, keep: tuple[str, ...] = ()) -> str:
    """Return a hypothesis that follows: fewer details, another form, or a more general word.

    Details in `keep` are always mentioned.
    """
    less = replace(
        event,
        agent_trait="" if rng.random() < 0.6 else event.agent_trait,
        thing_trait="" if rng.random() < 0.6 else event.thing_trait,
        place="" if rng.random() < 0.5 else event.place,
        time="" if rng.random() < 0.5 else event.time,
        reason="",
    )
    kind = rng.random()
    if kind < 0.2 and "agent" not in keep:
        return capital(f"somebody {less.verb.past} {thing_phrase(less)}.")
    if 0.2 <= kind < 0.35 and "thing" not in keep:
        return capital(f"{agent_phrase(less)} {less.verb.past} something.")
    if kind < 0.45 and "agent" not in keep:
        time = f" {less.time}" if less.time else ""
        return capital(f"{thing_phrase(less)} had been {less.verb.participle}{time}.")
    return say(reword(less, rng, 0.3), rng.choice(FORMS))


def _contradicted(rng: Random, event: Event) -> str:
    """Return a hypothesis that cannot be true: the action denied, or done by somebody else."""
    agent, thing, verb = agent_phrase(event), thing_phrase(event), event.verb
    tail = " ".join(part for part in (event.place, event.time) if part and rng.random() < 0.5)
    frames = (
        f"{agent} did not {verb.base} {thing} {tail}",
        f"nobody {verb.past} {thing} {tail}",
        f"{agent} never {verb.past} {thing}",
        f"{agent} refused to {verb.base} {thing} {tail}",
        f"{thing} {'were' if event.number else 'was'} not {verb.participle} by anyone",
        f"it was not {agent} who {verb.past} {thing} {tail}",
        f"it is not true that {agent} {verb.past} {thing} {tail}",
        f"it is wrong that {agent} {verb.past} {thing}",
    )
    return capital(rng.choice(frames).strip()) + "."


def _undecided(rng: Random, event: Event) -> str:
    """Return a hypothesis that the premise leaves open: about an action that it does not mention.

    It is phrased as entailed and contradicted ones are, so that no frame gives the label away.
    """
    kind = rng.random()
    if kind < 0.5:
        slots = tuple(rng.sample(_CORE, rng.choice((1, 2))))
        if slots == ("agent",):  # "it was A who did it" would deny that B did
            slots = ("agent", "thing")
        return _entailed(rng, alter(event, rng, slots), keep=slots)
    other = alter(event, rng, tuple(rng.sample(_CORE, 2)))
    return _contradicted(rng, other) if kind < 0.8 else _negative_twin(rng, other)


def _negative_twin(rng: Random, event: Event) -> str:
    """Return a hypothesis that follows despite a denial, so that "not" alone decides nothing."""
    agent, thing, verb = agent_phrase(event), thing_phrase(event), event.verb
    was = "were" if event.number else "was"
    frames = (
        f"it is not true that nobody {verb.past} {thing}.",
        f"it is not true that {agent} never {verb.past} {thing}.",
        f"it is wrong that {agent} did not {verb.base} {thing}.",
        f"it is not true that {thing} {was} not {verb.participle} by anyone.",
        f"{agent} did not refuse to {verb.base} {thing}.",
    )
    return capital(rng.choice(frames))


def entailment3(rng: Random, label: int) -> Row:
    """Return premise and hypothesis; 0 entailed, 1 neutral, 2 contradicted, as in MNLI."""
    event = draw_event(rng)
    premise = wrap(rng, event.topic, say(event, rng.choice(FORMS)), most=4)
    if label == 0 and rng.random() < 0.25:
        return premise, _negative_twin(rng, event)
    return premise, (_entailed, _undecided, _contradicted)[label](rng, event)


def entailment(rng: Random, label: int) -> Row:
    """Return premise and hypothesis; 0 entailed, 1 not entailed, as in RTE."""
    event = draw_event(rng)
    premise = wrap(rng, event.topic, say(event, rng.choice(FORMS)), most=5)
    if label == 0 and rng.random() < 0.3:
        return premise, _negative_twin(rng, event)
    if label == 0:
        return premise, _entailed(rng, event)
    kind = rng.random()
    if kind < 0.4:
        return premise, _contradicted(rng, event)
    if kind < 0.75:
        return premise, _undecided(rng, event)
    slots = tuple(rng.sample(_CORE, rng.choice((1, 2))))
    return premise, _entailed(rng, alter(event, rng, slots), keep=slots)


PAIR: dict[str, Callable[[Random, int], Row]] = {
    "paraphrase": paraphrase,
    "qa": answer,
    "entailment": entailment,
    "entailment3": entailment3,
}
