"""What a Trainer's model and tokenizer are to an audit."""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from clbench.audit.language import LanguageLoss
from clbench.hf.training import audited
from clbench.models.locate import TINY_GPT


def test_the_loss_of_texts_is_the_same_on_whatever_side_the_trainer_pads() -> None:
    losses, model = [], AutoModelForCausalLM.from_pretrained(TINY_GPT).eval()
    for side in ("left", "right"):
        tokenizer = AutoTokenizer.from_pretrained(TINY_GPT, padding_side=side)
        watched = audited(model, tokenizer)
        losses += [LanguageLoss(watched, "built-in", 40, 0, torch.device("cpu"))(watched)]
        assert tokenizer.padding_side == side
    np.testing.assert_array_equal(*losses)
