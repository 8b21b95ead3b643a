"""Heads on fixed random features, computed without a gradient: KLDA and RanPAC."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.seeds import torch_stream
from clbench.methods.class_means import ClosedForm, Prototypes, Sums, sums_device
from clbench.models.families import output_width
from clbench.training.batches import Batch
from clbench.training.context import Context
from clbench.training.stage import Stage

CHUNK = 1000
"""Rows whose random features are held at once."""
RIDGES = tuple(10.0**power for power in range(-8, 9))
RIDGE_ROWS, FITTED_SHARE = 2000, 0.8
"""Most rows of a stage to choose λ on, and the share of them to fit on; the others are held out."""


def random_features(features: Tensor, directions: Tensor, phases: Tensor | None) -> Tensor:
    """Return random features, shape (e, n, m), of features of shape (n, h).

    `directions` W have shape (e, h, m), for e members of an ensemble. With `phases` b of shape
    (e, 1, m) the result is ``√(2/m)·cos(xW + b)``, without them ``relu(xW)``.
    """
    products = features @ directions.to(features)
    if phases is None:
        return products.relu_()
    return products.add_(phases.to(features)).cos_().mul_(math.sqrt(2.0 / products.shape[-1]))


class RandomFeatureHead(nn.Linear):
    """A head on `random_features`, whose arguments are no weights of it.

    The weight of shape (outputs, e·m) and the bias of shape (outputs, e) hold a head for each
    member. Several members answer with the logarithm of their mean probabilities; outputs that
    are no logits are averaged.
    """

    directions: Tensor
    phases: Tensor | None

    def __init__(self, outputs: int, directions: Tensor, phases: Tensor | None) -> None:
        members, _, width = directions.shape
        with torch.device("meta"):  # draws nothing from torch's own stream
            super().__init__(members * width, outputs)
        self.weight = nn.Parameter(directions.new_zeros(outputs, members * width))
        self.bias = nn.Parameter(directions.new_zeros(outputs, members))
        # All heads share them. They are drawn again from their stream, so not saved.
        self.register_buffer("directions", directions, persistent=False)
        self.register_buffer("phases", phases, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return the outputs, shape (…, outputs), for features of shape (…, h)."""
        mapped = random_features(features.flatten(0, -2), self.directions, self.phases)
        weight = self.weight.view(len(self.weight), len(mapped), -1)
        outputs = torch.einsum("enm,oem->eno", mapped, weight) + self.bias.T[:, None]
        if len(outputs) == 1 or outputs.shape[-1] == 1:
            joint = outputs.mean(0)
        else:
            joint = outputs.log_softmax(-1).logsumexp(0) - math.log(len(outputs))
        return joint.view(*features.shape[:-1], -1)


class RandomFeatures(ClosedForm):
    """Base of methods that compute the heads on random features of the pooled vector.

    The map is drawn once, by the cell's seed. The second moment has `features`² entries in float64,
    0.8 GB at 10,000, and is stored with every stage that a cell may resume from.
    """

    control = False
    check_settings: ClassVar[Mapping[str, Any]] = {"features": 64}

    @abstractmethod
    def random_map(self, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor | None]:
        """Draw directions and phases of `random_features` for features of length `size`."""

    def setup(self, context: Context) -> None:
        """Put the random features before all heads."""
        super().setup(context)
        heads, size = context.model.heads, output_width(context.model.config)
        generator = torch_stream("method", "random-features", context.seed, context.scenario)
        directions, phases = self.random_map(generator, size)
        self._map = (
            directions.to(context.device),
            None if phases is None else phases.to(context.device),
        )
        for key, layer in heads.items():
            if isinstance(layer, nn.Linear):
                heads[key] = RandomFeatureHead(layer.out_features, *self._map)

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return 0: `after_stage` reads all rows at once, as few large products are faster."""
        return stage.trainable()[0].sum() * 0.0

    def after_stage(self, stage: Stage) -> None:
        """Add the rows of the stage to the sums; write all heads so far."""
        data = stage.data
        features = torch.from_numpy(stage.features(data)).to(sums_device(stage), torch.float64)
        labels = torch.from_numpy(data.rows.labels.copy())
        rows = Batch({}, labels, data.head, data.regression, data.task, data.rows.labels, 0)
        for start in range(0, len(labels), CHUNK):
            part = slice(start, start + CHUNK)
            self.add(replace(rows, labels=labels[part]), features[part])
        self.choose(stage, rows, features)
        super().after_stage(stage)

    def choose(self, stage: Stage, rows: Batch, features: Tensor) -> None:
        """Called with all rows of a stage before the heads are computed: choose a setting."""

    def mapped(self, features: Tensor) -> Tensor:
        """Return the random features, shape (e, n, m)."""
        return random_features(features, *self._map)

    def solve(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return weight and bias of each head so far, as in `RandomFeatureHead`."""
        return {
            head: (weight.movedim(0, 1).flatten(1), bias.T)
            for head, (weight, bias) in super().solve().items()
        }


class KLDA(RandomFeatures, Prototypes):
    """Answer as prototypes does, on random Fourier features of an RBF kernel (KLDA).

    Momeni et al. 2025 (arXiv 2412.15571): linear discriminant analysis with a covariance that all
    classes share, on ``√(2/m)·cos(xW + b)`` with W from N(0, 2γ) and b uniform on [0, 2π], whose
    products approximate ``exp(−γ‖x − y‖²)`` (Rahimi & Recht 2007). The authors' pseudo-inverse of
    the covariance is replaced by the shrinkage of `Prototypes`, as rows may be few. An ensemble
    averages the probabilities that these Gaussians give for a row. The authors' code takes the
    softmax of −dᵀS⁻¹d, with d the difference to a class mean and S the scatter summed over all
    rows instead of averaged, without the ½: with N rows, its logits are 2/N of those here.

    Attributes
    ----------
    features
        m, D in the paper: number of random features. The covariance has m² entries.
    gamma
        γ of the kernel, σ in the authors' code. It depends on the size of the model's features.
    ensemble
        Number of maps, each with a covariance of its own, whose probabilities are averaged.
    """

    name = "klda"
    features: Annotated[int, Field(ge=1, le=50_000)] = 5000
    gamma: Annotated[float, Field(gt=0.0, le=1e6)] = 1e-2
    ensemble: Annotated[int, Field(ge=1, le=100)] = 1

    def random_map(self, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor | None]:
        """Draw the frequencies and phases of the Fourier features."""
        shape = self.ensemble, size, self.features
        directions = math.sqrt(2.0 * self.gamma) * torch.randn(shape, generator=generator)
        phases = 2.0 * math.pi * torch.rand(self.ensemble, 1, self.features, generator=generator)
        return directions, phases


class RanPAC(RandomFeatures):
    """Fit a ridge regression of the classes on a random projection of frozen features (RanPAC).

    McDonnell et al. 2023 (arXiv 2307.02251, Algorithm 1) without its adaptation to the first
    task: with features h = relu(xW), W from N(0, 1), the rows of a head are
    ``(G + λI)⁻¹ Σ_rows h`` of each class, where G is the sum of hhᵀ over all rows so far. G is that
    of all heads, so the rows of other heads count as rows of no class.

    Attributes
    ----------
    features
        M: length of the projection. G has M² entries.
    ridge
        λ; or ``held-out``: of the powers of ten from 1e-8 to 1e8 the one with the least squared
        error on a fifth of each stage's training rows, of at most 2,000, after a fit on the rest.
        Errors are summed over the stages; the authors' code takes the last one, so that the order
        would matter.
    """

    name = "ranpac"
    features: Annotated[int, Field(ge=1, le=50_000)] = 10_000
    ridge: Annotated[float, Field(gt=0.0, le=1e12)] | Literal["held-out"] = "held-out"

    def setup(self, context: Context) -> None:
        """Start without errors of any λ."""
        super().setup(context)
        self.errors = [0.0] * len(RIDGES)

    def random_map(self, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor | None]:
        """Draw the projection."""
        return torch.randn(1, size, self.features, generator=generator), None

    @property
    def strength(self) -> float:
        """λ now."""
        if self.ridge != "held-out":
            return self.ridge
        return RIDGES[self.errors.index(min(self.errors))]

    def choose(self, stage: Stage, rows: Batch, features: Tensor) -> None:
        """Add the errors of each λ on the held-out rows of the stage."""
        if self.ridge == "held-out":
            columns = self.columns(rows, features)
            flat = features.flatten(0, -2)
            # Named by the task, not by its place, so that the order of tasks does not matter.
            generator = torch_stream("method", "held-out", stage.seed, stage.data.name)
            order = torch.randperm(len(flat), generator=generator)[:RIDGE_ROWS]
            new = held_out_errors(self.mapped(flat[order])[0], columns[order])
            self.errors = [error + each for error, each in zip(self.errors, new, strict=True)]
        stage.record("ridge", self.strength)

    def classes(self, sums: Mapping[str, Sums]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the ridge solution for the classes of each head, without a bias."""
        gram = self.regularised(torch.as_tensor(self.moment), 1.0)
        joint = torch.cat([each["features"] for each in sums.values()], dim=-2)
        weights = torch.linalg.solve(gram, joint.mT).mT
        parts = weights.split([len(each["weights"]) for each in sums.values()], dim=-2)
        return {h: (w, w.new_zeros(w.shape[:-1])) for h, w in zip(sums, parts, strict=True)}

    def regularised(self, covariance: Tensor, rows: float) -> Tensor:
        """Return the covariance with λ/n on its diagonal."""
        result = covariance.clone()
        result.diagonal(dim1=-2, dim2=-1).add_(self.strength / rows)
        return result


def held_out_errors(features: Tensor, targets: Tensor) -> list[float]:
    """Return the squared error of a ridge regression on held-out rows for each of `RIDGES`.

    It is fitted on the first rows (`FITTED_SHARE`) of features of shape (n, m) and targets of shape
    (n, outputs), by the products of rows, so that all λ need one decomposition.
    """
    fitted = int(FITTED_SHARE * len(features))
    if fitted == 0:
        return [0.0] * len(RIDGES)
    products = features @ features[:fitted].T
    values, vectors = torch.linalg.eigh(products[:fitted])
    across, turned = products[fitted:] @ vectors, vectors.T @ targets[:fitted]
    errors = []
    for ridge in RIDGES:
        outputs = across @ (turned / (values.clamp(min=0.0) + ridge)[:, None])
        errors.append(float((outputs - targets[fitted:]).square().sum()))
    return errors
