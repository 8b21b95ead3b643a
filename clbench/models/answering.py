"""A language model whose own head answers every task in words."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, Literal

import torch
import transformers
from torch import Tensor

from clbench.core.errors import ModelError
from clbench.models.answer_scores import AnswerScorer, logits_at
from clbench.models.beginnings import FEWEST, Behind, common, reads_ahead
from clbench.models.checkpoint import load_generator
from clbench.models.classifier import TaskModel, evaluating, last_token
from clbench.models.families import family_of_whole
from clbench.models.packing import ATTENTION, PACKED_LENGTH, pack

AnswerScore = Literal["sum", "mean"]
PACKING_TOLERANCE = {True: 1e-3, False: 0.2}
"""Largest difference, in nats, between packed and padded rows, in float32 and in bf16."""


class AnsweringModel(TaskModel):
    """A language model with its own head, for which every task is a text to continue.

    Nothing is added to the model and no task has weights of its own. `forward` takes batches of
    `clbench.models.encoding.PromptRows`.

    Parameters
    ----------
    model
        A causal or encoder-decoder language model of transformers.
    answer_score
        Whether answers are ranked by the ``sum`` or the ``mean`` of their tokens' log-probability.
    pad_id
        Token id of padding.
    packs
        Whether to train on several rows in one sequence, each of which sees itself only.
    """

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        *,
        answer_score: AnswerScore = "sum",
        pad_id: int = 0,
        packs: bool = False,
    ) -> None:
        super().__init__(model, family_of_whole(model))
        # A checkpoint's own may not be greedy.
        model.generation_config = transformers.GenerationConfig()
        self.encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))
        self.packs, self._packing_checked = packs, False
        self._by_rows = True  # until the check shows that layers drop the argument
        self._scorer = AnswerScorer(model, pad_id=pad_id, mean=answer_score == "mean")
        self._pad_id = pad_id

    def forward(
        self, inputs: dict[str, Tensor], head: str, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Return what a batch of prompts asks for.

        To train on: logits of the answers' tokens, shape (b, m, v). With ``candidates``: their
        log-probabilities, shape (b, k), or for regression the expected value, shape (b, 1).
        """
        if "candidates" not in inputs:
            return self._answer_logits(inputs, inputs_embeds)
        scores = self._scorer(inputs)
        if "values" in inputs:
            return (scores.softmax(-1) * inputs["values"]).sum(-1, keepdim=True)
        return scores[..., : self.shown.get(head)]

    def pooled(self, inputs: Mapping[str, Tensor], inputs_embeds: Tensor | None = None) -> Tensor:
        """Return the last hidden state of each prompt's last token, shape (b, h)."""
        arguments = self._arguments(inputs, inputs_embeds)
        if self.encoder_decoder:
            encoder: Any = self.backbone.get_encoder()
            hidden: Tensor = encoder(**arguments).last_hidden_state
        else:
            body = self.backbone.base_model
            hidden = body(**arguments, **self.family.options).last_hidden_state
        if "predict" not in inputs:
            return last_token(hidden, inputs["attention_mask"])
        return hidden[torch.arange(len(hidden), device=hidden.device), inputs["predict"][:, 0]]

    def head_parameter_names(self, name: str) -> list[str]:
        """Return no names: tasks have no heads of their own."""
        return []

    def write(
        self, inputs: Mapping[str, Tensor], stops: Sequence[int], most: int, **options: Any
    ) -> list[Tensor]:
        """Return what the model writes after each prompt; parameters as in `write`."""
        return list(write(self.backbone, inputs, stops, most, pad_id=self._pad_id, **options))

    def _arguments(self, inputs: Mapping[str, Tensor], inputs_embeds: Tensor | None) -> Any:
        arguments = {"attention_mask": inputs["attention_mask"]}
        if inputs_embeds is None:
            return {**arguments, "input_ids": inputs["input_ids"]}
        return {**arguments, "inputs_embeds": inputs_embeds}

    def _answer_logits(self, inputs: Mapping[str, Tensor], inputs_embeds: Tensor | None) -> Tensor:
        """Return the logits of answers' tokens; the head is computed at their positions only."""
        arguments = self._arguments(inputs, inputs_embeds)
        if self.encoder_decoder:
            start = int(self.config.decoder_start_token_id)
            before = inputs["decoder_input_ids"]
            arguments["decoder_input_ids"] = before.masked_fill(before < 0, start)
            logits: Tensor = self.backbone(**arguments, use_cache=False).logits
            return logits
        predict = inputs["predict"]
        if not (self.packs and self.training):
            return logits_at(self.backbone, predict, **arguments)
        if not self._packing_checked:
            self._check_packing(arguments, predict)
        return self._packed_logits(arguments, predict)

    def _packed_logits(
        self, arguments: Mapping[str, Tensor], predict: Tensor, room: int | None = None
    ) -> Tensor:
        attention = getattr(self.config, "_attn_implementation", None)
        whole = attention == ATTENTION and self._by_rows
        packed, positions = pack(arguments, predict, None if whole else room or PACKED_LENGTH)
        if attention == "eager":
            # It adds the mask to its scores.
            sees, dtype = packed["attention_mask"], self.backbone.dtype
            lowest = torch.finfo(dtype).min
            mask = torch.zeros(sees.shape, dtype=dtype, device=sees.device)
            packed["attention_mask"] = mask.masked_fill_(~sees, lowest)
        return logits_at(self.backbone, positions, **packed).view(*predict.shape, -1)

    @torch.no_grad()
    def _check_packing(self, arguments: Mapping[str, Tensor], predict: Tensor) -> None:
        """Raise a ModelError unless packed rows have the logits of padded ones."""
        few = {name: value[:2] for name, value in arguments.items()}
        most = PACKING_TOLERANCE[self.backbone.dtype == torch.float32]
        self._packing_checked = True
        with evaluating(self), torch.autocast(predict.device.type, enabled=False):
            for self._by_rows in (True, False):
                try:
                    packed = self._packed_logits(few, predict[:2], few["attention_mask"].numel())
                    apart = logits_at(self.backbone, predict[:2], **few).float()
                except (RuntimeError, TypeError, ValueError, IndexError):
                    continue
                if (packed.float().log_softmax(-1) - apart.log_softmax(-1)).abs().max() <= most:
                    return
        raise ModelError(
            f"packing: in models of type {self.config.model_type!r}, packed rows attend to "
            "each other. Set packing = false in [protocol]."
        )


def build_answering_model(
    name: str, *, revision: str | None = None, **options: Any
) -> AnsweringModel:
    """Return a pretrained language model with its head; `options` are those of `AnsweringModel`.

    Raises
    ------
    ModelError
        As `clbench.models.checkpoint.load_generator`, or if the model cannot pack rows.
    """
    model = load_generator(name, revision)
    if options.get("packs"):
        check_packing(model, name)
    return AnsweringModel(model, **options)


def check_packing(model: transformers.PreTrainedModel, name: str) -> None:
    """Raise a ModelError if a model cannot pack rows."""
    if "position_ids" not in signature(model.forward).parameters:
        raise ModelError(f"model {name!r} takes no positions. Set packing = false in [protocol].")
    ids = torch.arange(8, device=model.device).view(2, 4)
    rows = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    AnsweringModel(model, packs=True)._check_packing(rows, ids % 4)


@torch.no_grad()  # autocast keeps converted weights neither in inference mode nor frozen ones
def write(
    model: Any,
    inputs: Mapping[str, Tensor],
    stops: Sequence[int],
    most: int,
    *,
    pad_id: int,
    draws: Tensor | None = None,
    temperature: float = 1.0,
    until: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Return what a language model writes after each prompt: token numbers, shape (b, n).

    Parameters
    ----------
    model
        A causal or encoder-decoder language model of transformers.
    inputs
        ``input_ids`` and ``attention_mask``, shape (b, t), padded on the right.
    stops
        Tokens that end a text, behind which `pad_id` follows.
    most
        Most tokens of a text.
    draws
        Numbers from 0 to 1, shape (b, `most`): each draws a token from the model's distribution at
        `temperature`. None writes greedily.
    until
        A stopping criterion of transformers, which ends texts besides `stops`.
    """
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    start, read = 1, None
    if not getattr(model.config, "is_encoder_decoder", False):
        shared = _shared_beginning(ids, mask)
        if shared and not reads_ahead(model):
            shared = 0
        ids, mask = _padded_left(ids, mask, shared, pad_id)
        start = ids.shape[1]
        if shared:
            with evaluating(model):
                read = Behind(model, ids[:1, :shared]).cache(len(ids), start + most)

    def draw(written: Tensor, scores: Tensor) -> Tensor:
        """Leave only the first token whose cumulative probability exceeds the number."""
        assert draws is not None
        fine = torch.float32 if scores.device.type == "mps" else torch.float64  # which MPS lacks
        scores = scores.to(fine) / temperature
        if pad_id not in stops:
            scores[:, pad_id] = -torch.inf  # no text has padding
        sums = scores.softmax(-1).cumsum(-1)
        number = draws[:, written.shape[1] - start, None].to(sums) * sums[:, -1:]
        token = torch.searchsorted(sums, number, right=True).clamp(max=sums.shape[1] - 1)
        return torch.full_like(scores, -torch.inf).scatter_(1, token, 0.0)

    config = transformers.GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=most,
        eos_token_id=list(stops),
        pad_token_id=pad_id,
        decoder_start_token_id=getattr(model.config, "decoder_start_token_id", None),
        disable_compile=True,  # else a cache with room is compiled on CUDA, anew for each batch
    )
    processors = transformers.LogitsProcessorList([] if draws is None else [draw])
    criteria = transformers.StoppingCriteriaList([] if until is None else [until])
    takes = signature(model.prepare_inputs_for_generation).parameters
    cache = "cache" if "cache" in takes else "past_key_values"  # its name before transformers 5.24
    own, model.generation_config = model.generation_config, transformers.GenerationConfig()
    try:  # a checkpoint's own settings may not be greedy
        with evaluating(model, [p for p in model.parameters() if p.is_floating_point()]):
            written: Tensor = model.generate(
                ids,
                config,
                logits_processor=processors,
                stopping_criteria=criteria,
                attention_mask=mask,
                **{cache: read},
            )
    finally:
        model.generation_config = own
        torch.clear_autocast_cache()  # older torch would train on its weights, without gradients
    return written[:, start:]


def _shared_beginning(ids: Tensor, mask: Tensor) -> int:
    """Return how many tokens all prompts begin with, 0 if they are too few to read ahead."""
    prompts = [row[: int(size)] for row, size in zip(ids.tolist(), mask.sum(1), strict=True)]
    shared = min((common(prompts[0], other) for other in prompts[1:]), default=0)
    return shared if shared >= FEWEST else 0


def _padded_left(ids: Tensor, mask: Tensor, shared: int, pad_id: int) -> tuple[Tensor, Tensor]:
    """Return tokens and mask with the padding behind the `shared` first tokens, not at the end."""
    order = torch.argsort(mask[:, shared:], dim=1, stable=True) + shared
    order = torch.cat([torch.arange(shared, device=ids.device).repeat(len(ids), 1), order], 1)
    mask = mask.gather(1, order)
    return ids.gather(1, order).masked_fill(mask == 0, pad_id), mask


def stop_tokens(tokenizer: transformers.PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that end a written text: the end token, and all with a line break."""
    texts = tokenizer.batch_decode([[number] for number in range(len(tokenizer))])
    stops = {number for number, text in enumerate(texts) if "\n" in text}
    return sorted(stops | {int(tokenizer.eos_token_id or 0)})
