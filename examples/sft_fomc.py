"""Fine-tune a chat model on the stance of central bankers with TRL's SFTTrainer, as anybody would.

    python examples/sft_fomc.py --model MODEL --data DIR/LLM-CL-Benchmark_5000 --out tuned

`MODEL` is a folder or a name on the hub; the data is TRACE's download, of which FOMC is one task.
Needs ``pip install trl``. `docs/audit.md` audits the model that it writes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import SFTConfig, SFTTrainer


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--data", type=Path, required=True, help="folder with FOMC/train.json")
    parser.add_argument("--out", default="tuned")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--protect", help="method of clbench.hf that protects the model")
    args = parser.parse_args()
    set_seed(0)
    read = json.loads((args.data / "FOMC" / "train.json").read_text(encoding="utf-8"))
    rows = Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": row["prompt"]}],
                "completion": [{"role": "assistant", "content": row["answer"]}],
            }
            for row in read
        ]
    )
    trainer = SFTTrainer(
        AutoModelForCausalLM.from_pretrained(args.model),
        SFTConfig(
            args.out,
            num_train_epochs=1,
            per_device_train_batch_size=8,
            learning_rate=args.lr,
            max_length=256,
            bf16=torch.cuda.is_available(),
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            seed=0,
        ),
        train_dataset=rows.shuffle(seed=0).select(range(args.rows)),
        processing_class=AutoTokenizer.from_pretrained(args.model),
    )
    if args.protect:
        from clbench.hf import protect

        protect(trainer, args.protect)
    trainer.train()
    trainer.save_model(args.out)


if __name__ == "__main__":
    main()
