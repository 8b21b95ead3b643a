"""Random streams of a method that a training continues after an interruption."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat
from typing import Protocol, TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")


class Stream(Protocol):
    """Anything random whose state can be stored, such as a `torch.Generator`."""

    def get_state(self) -> Tensor:
        """Return the state."""

    def set_state(self, state: Tensor) -> object:
        """Continue from a state."""


class Endless(Iterator[Item]):
    """The items of one pass after another; the state is how many there were."""

    def __init__(self, one_pass: Callable[[], Iterable[Item]]) -> None:
        self._pass = one_pass
        self.restart()

    def restart(self) -> None:
        """Start again with a new pass."""
        self._items = chain.from_iterable(each() for each in repeat(self._pass))
        self._count = 0

    def __next__(self) -> Item:
        self._count += 1
        return next(self._items)

    def get_state(self) -> Tensor:
        """Return the number of items so far."""
        return torch.tensor([self._count])

    def set_state(self, state: Tensor) -> None:
        """Start again, and skip as many items."""
        self.restart()
        while self._count < int(state):
            next(self)


def continue_streams(streams: dict[str, Stream], states: Mapping[str, Tensor]) -> None:
    """Set streams to the states of streams of the same names.

    States of another kind of device are left out.
    """
    for name in [name for name, each in streams.items() if isinstance(each, torch.Generator)]:
        del streams[name]  # which starts anew if `Endless` items that are skipped draw from it
    for is_endless in (True, False):
        for name, state in states.items():
            stream = streams.get(name) or torch.Generator()
            if isinstance(stream, Endless) == is_endless:
                streams[name] = stream
                if stream.get_state().shape == state.shape:
                    stream.set_state(state)
