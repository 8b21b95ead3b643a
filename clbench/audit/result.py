"""The result of an audit, wherever its scores come from; it needs no torch."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from clbench.audit.comparison import Comparison
from clbench.audit.gate import Decision
from clbench.audit.record import FORMAT, SCHEMA

if TYPE_CHECKING:
    from clbench.audit.relearn import Relearned
    from clbench.audit.weights import Drift


@dataclass(frozen=True)
class PutBack:
    """What a tuned model regains if one group of layers gets the base model's weights back.

    `features` is the change of the mean accuracy over the tasks, by probes, or else of the answers
    to general tasks; None without tasks. `language` is that of the loss with its sign turned. Above
    0 is better than the tuned model.
    """

    name: str
    features: float | None
    language: float


@dataclass(frozen=True)
class ModelAudit:
    """What is known of one tuned model."""

    name: str
    comparison: Comparison
    layers: tuple["Drift", ...] = ()
    put_back: tuple[PutBack, ...] = ()
    relearned: tuple["Relearned", ...] = ()
    notes: tuple[str, ...] = ()
    decision: Decision | None = None
    """Whether it passes the gate, if there is one."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        gate = {} if self.decision is None else {"gate": self.decision.to_json(self.name)}
        return {
            "model": self.name,
            **gate,
            **self.comparison.to_json(),
            "layers": [
                {"name": layer.name, "weights": layer.weights, "cka": layer.similarity}
                for layer in self.layers
            ],
            "put_back": [asdict(each) for each in self.put_back],
            "relearned": [each.to_json() for each in self.relearned],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Between:
    """Two tuned models compared: the second with the first."""

    first: str
    second: str
    comparison: Comparison


@dataclass(frozen=True)
class Audit:
    """The result of `audit`.

    Attributes
    ----------
    settings
        What decided the result besides the models.
    identity
        As `identify` returns it.
    """

    base: str
    models: tuple[ModelAudit, ...]
    between: tuple[Between, ...]
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()
    identity: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``audit.json`` without the items."""
        return {
            "format": FORMAT,
            "schema_version": SCHEMA,
            "identity": self.identity,
            "base": self.base,
            "settings": self.settings,
            "models": [model.to_json() for model in self.models],
            "between": [
                {"first": pair.first, "second": pair.second, **pair.comparison.to_json()}
                for pair in self.between
            ],
            "notes": list(self.notes),
        }
