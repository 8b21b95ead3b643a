"""Methods that train the depths of a model differently: LP-FT, freezing, rates, ULMFiT."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from clbench.core.errors import SettingsError
from clbench.methods.base import LearningRate, Method, Phase
from clbench.models.checkpoint import load_config
from clbench.models.groups import MOST_LAYERS, Division, lr_groups
from clbench.tasks.task import Task
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage


class LpFt(Method):
    """Fit the stage's head on frozen features first, then train all weights.

    A random head sends large gradients into the features and distorts them, which linear probing
    then fine-tuning avoids (Kumar et al. 2022, sections 3.4 and 4). Both phases together have as
    many steps as the protocol gives the stage; each has an optimizer and a schedule of its own. The
    paper probes until the head has converged and chooses the probe by its validation accuracy; here
    a share of the steps stands for that. While the backbone is frozen its dropout is off. A head
    that an earlier task trained is probed from the weights that it has.

    Attributes
    ----------
    probe
        Share of the stage's steps that train the head alone, rounded to whole steps; at least one
        step, and at least one is left for the rest. A stage of one step trains everything.
    probe_lr
        Rate of these steps. The others have the flat rate.
    """

    name = "lp-ft"
    head_kinds = ("classification",)
    probe: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    probe_lr: LearningRate = 1e-3

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return two phases, probing and fine-tuning, with the steps of the stage between them."""
        steps = stage.own_steps
        probing = min(max(1, round(self.probe * steps)), steps - 1)
        return [Phase("probe", steps=probing), Phase("fine-tune", steps=steps - probing)]

    def before_phase(self, stage: Stage) -> None:
        """Freeze the backbone for probing, and unfreeze what that froze afterwards."""
        if stage.phase == 0:
            backbone = stage.model.backbone_parameters().values()
            self._frozen = [weight for weight in backbone if weight.requires_grad]
        for weight in self._frozen:
            weight.requires_grad_(stage.phase > 0)

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return one group: the head at the rate of probing, or all weights at the flat rate."""
        lr = self.probe_lr if stage.phase == 0 else stage.protocol.lr
        return [{"params": stage.trainable(), "lr": lr}]


class FreezeBottom(Method):
    """Freeze the embeddings and the lowest layers, and train the rest.

    Fine-tuning the upper layers gets most of the quality (Lee et al. 2019, arXiv 1911.03090), and
    freezing the lower ones after the first task keeps what earlier tasks are read from (Zheng et
    al. 2025, arXiv 2501.13453). Where a decoder's output layer shares the embeddings, it is frozen.

    Attributes
    ----------
    layers
        Number of frozen layers, or, below 1, their share, rounded; 0 freezes the embeddings.
    first
        Whether the first stage is trained so, too.
    """

    name = "freeze-bottom"
    runs_in_trainer = True
    layers: Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0.0, lt=1.0)] = 0.75
    first: bool = False

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage unless it is to be trained so."""
        return index > 0 or self.first

    def check_protocol(self, protocol: Protocol) -> None:
        """Read the number of layers; encoder-decoders have some in each part."""
        config = load_config(protocol.model, protocol.revision)
        one = not getattr(config, "is_encoder_decoder", False)
        depth = getattr(config, "num_hidden_layers", None)
        # ALBERT's layers share the weights of a few.
        self._depth = getattr(config, "num_hidden_groups", depth) if one else None

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Raise a SettingsError if the model has fewer layers than are to be frozen."""
        if self._depth is not None:
            self._frozen(self._depth)

    def _frozen(self, depth: int) -> int:
        count = round(self.layers * depth) if isinstance(self.layers, float) else self.layers
        if count > depth:
            raise SettingsError(
                f"{self.name!r}: layers = {count} is more than the {depth} of the model. Set at "
                f"most {depth}."
            )
        return count

    def before_stage(self, stage: Stage) -> None:
        """Freeze what `layers` says; raise a SettingsError if the model has fewer."""
        embeddings, *layers, _ = stage.model.layer_groups()
        lowest, weights = layers[: self._frozen(len(layers))], dict(stage.model.named_parameters())
        for name in (name for group in (embeddings, *lowest) for name in group.parameters):
            weights[name].requires_grad_(False)
        if len(lowest) == len(layers):
            stage.note(f"{self.name}: only what is above the {len(layers)} layers is trained.")


Rates = Annotated[list[LearningRate], Field(min_length=3)]
Multiples = Annotated[list[Annotated[float, Field(gt=0.0, le=1e6)]], Field(min_length=3)]


class Layerwise(Method):
    """Fine-tune each depth of the model at its own rate (Kenneweg et al. 2022).

    The first rate is for the embeddings, the next ones for groups of layers from the bottom
    up, the last for the head and whatever is neither embedding nor layer. Ten rates give the
    groups of the paper (section 3.1). The curves ``rate.embeddings``, ``rate.layers.1`` …
    and ``rate.head`` show the rates of each stage.

    Attributes
    ----------
    rates
        Absolute rates, at least three.
    multiples
        Rates as multiples of the protocol's flat rate, so that a distribution carries over to
        another flat rate. Set either `rates` or `multiples`, or `decay`.
    decay
        Factor from one depth to the next lower one, below the flat rate of the head and of a
        decoder's last norm.
    depth
        Number of layers of the model that the distribution was found on. A model of another
        depth gets one rate per layer, by relative position (geometric means; see
        `clbench.models.groups.transfer_rates`); ALBERT, whose layers share their weights, gets
        one for all of them. None divides the model's own layers, whatever their number.
    division
        How layers are grouped: as in the authors' ``code`` or as in the ``paper``'s
        text; see `clbench.models.groups.divide_layers`.

    Raises
    ------
    SettingsError
        If not exactly one of `rates`, `multiples` and `decay` is set, or absolute rates and a flat
        one, or `decay` and `depth`.
    """

    name = "layerwise"
    runs_in_trainer = True
    rates: Rates | None = None
    multiples: Multiples | None = None
    decay: Annotated[
        Annotated[float, Field(gt=0.0, le=1.0)] | None, Field(exclude_if=lambda value: not value)
    ] = None
    depth: Annotated[int, Field(ge=1, le=MOST_LAYERS)] | None = None
    division: Division = "code"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if [self.rates, self.multiples, self.decay].count(None) != 2:
            raise SettingsError(
                "layerwise needs either rates (absolute) or multiples (of the flat rate), or a "
                "decay. The baseline bertcl-combined has the published multiples."
            )
        if self.decay is not None and self.depth is not None:
            raise SettingsError("depth has no effect on a decay. Remove it.")
        if self.rates is not None and (self.lr, self.lr_multiple) != (None, 1.0):
            raise SettingsError(
                "lr and lr_multiple have no effect on rates (absolute). Use multiples."
            )

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return groups of the weights that the stage trains, from the embeddings to the head."""
        flat = stage.protocol.lr
        multiples = self.multiples or []
        if self.decay is not None:
            multiples = [self.decay**below for below in range(len(stage.model.layer_groups()))]
            multiples.reverse()
        rates = self.rates or [flat * multiple for multiple in multiples]
        trained = {id(parameter) for parameter in stage.trainable()}
        groups = lr_groups(stage.model, rates, division=self.division, depth=self.depth)
        for group in groups:
            group["params"] = [p for p in group["params"] if id(p) in trained]
            stage.record(f"rate.{group['name']}", group["lr"])
        return [group for group in groups if group["params"]]


class Ulmfit(Method):
    """Train from the head downwards: lower layers join later and at lower rates.

    The three parts of Howard & Ruder 2018: discriminative rates (section 3.2: each layer's
    rate is that of the layer above divided by 2.6), slanted triangular rates (equation 3)
    and gradual unfreezing (section 3.3). Groups are the head, each layer from the top down
    and the embeddings; weights that have not joined yet get neither gradient nor update. The
    flat rate is the largest rate of the head; the paper's 0.01 is for LSTMs.

    Attributes
    ----------
    decay
        Divisor of the rate from one group to the next lower one.
    cut_frac
        Share of the steps in which the rates rise.
    ratio
        Largest rate divided by the lowest.
    unfreezing
        When groups join. ``epochs``: one per epoch, as in the paper; in a stage of fewer
        epochs than groups the lowest never join. ``scaled``: one after each equal part of
        the stage, which is the paper's schedule if a stage has as many epochs as
        groups. ``none``: all at once. The curve ``trained_groups`` shows it.
    """

    name = "ulmfit"
    decay: Annotated[float, Field(ge=1.0, le=100.0)] = 2.6
    cut_frac: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    ratio: Annotated[float, Field(ge=1.0, le=1e6)] = 32.0
    unfreezing: Literal["scaled", "epochs", "none"] = "scaled"

    _groups: list[list[nn.Parameter]] = []

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return groups from the head down, each at its rate; all but the head are frozen."""
        self._groups = depth_groups(stage)
        self._unfreeze(1 if self.unfreezing != "none" else len(self._groups))
        top = stage.protocol.lr
        return [
            {"params": group, "lr": top / self.decay**depth}
            for depth, group in enumerate(self._groups)
        ]

    def schedule(self, stage: Stage, optimizer: Optimizer) -> LambdaLR:
        """Return one slanted triangle over the phase, the same for all groups."""
        factor = partial(
            slanted_triangle, steps=stage.steps, cut_frac=self.cut_frac, ratio=self.ratio
        )
        return LambdaLR(optimizer, factor)

    def before_step(self, stage: Stage) -> None:
        """Unfreeze the groups that are due."""
        count = len(self._groups)
        if self.unfreezing == "none":
            due = count
        elif self.unfreezing == "epochs":
            due = min(count, 1 + stage.step // stage.epoch_steps)
        else:
            due = sum(stage.step >= depth * stage.steps // count for depth in range(count))
        if due > self._trained_groups:
            self._unfreeze(due)
            stage.model.train()  # the engine turns dropout off in a frozen backbone
        elif stage.step > 0:
            return
        stage.record("trained_groups", float(due))

    def after_stage(self, stage: Stage) -> None:
        """Unfreeze all groups."""
        self._unfreeze(len(self._groups))

    def _unfreeze(self, count: int) -> None:
        for depth, group in enumerate(self._groups):
            for parameter in group:
                parameter.requires_grad_(depth < count)
        self._trained_groups = count


def depth_groups(stage: Stage) -> list[list[nn.Parameter]]:
    """Return the weights that the stage trains, grouped by layer from the head down."""
    trained = stage.trainable_weights()
    groups = [
        [trained[name] for name in group.parameters if name in trained]
        for group in reversed(stage.model.layer_groups())
    ]
    return [group for group in groups if group]


def slanted_triangle(step: int, *, steps: int, cut_frac: float, ratio: float) -> float:
    """Return the factor on the rate: a short rise, then a long fall.

    Howard & Ruder 2018, equation 3, for step number `step`, from 0, of `steps`. At least one
    step rises. If ``steps·cut_frac`` is not a whole number, the paper's line falls below the
    lowest rate, even below 0; here it reaches the lowest rate after the last step.
    """
    cut = max(1, int(steps * cut_frac))
    rising = step < cut
    share = step / cut if rising else max(0.0, 1.0 - (step - cut) / max(1, steps - cut))
    return (1.0 + share * (ratio - 1.0)) / ratio
