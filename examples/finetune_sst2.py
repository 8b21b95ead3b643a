"""Fine-tune a model on SST-2 with the Trainer of transformers, as anybody would.

    python examples/finetune_sst2.py --model MODEL --data DIR/glue --out tuned

`MODEL` is a folder or a name on the hub; without ``--data``, SST-2 comes from the hub. Needs
``pip install accelerate``. `docs/audit.md` audits the model that it writes.
"""

from __future__ import annotations

import argparse

from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--data", default="nyu-mll/glue", help="folder in the layout of the hub's")
    parser.add_argument("--out", default="tuned")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()
    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(
        args.model,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    rows = load_dataset(args.data, "sst2", split="train").shuffle(seed=0).select(range(args.rows))
    rows = rows.map(
        lambda batch: tokenizer(batch["sentence"], truncation=True, max_length=64), batched=True
    )
    settings = TrainingArguments(
        args.out,
        num_train_epochs=1,
        per_device_train_batch_size=16,
        learning_rate=args.lr,
        save_strategy="no",
        report_to="none",
        seed=0,
    )
    trainer = Trainer(
        model,
        settings,
        train_dataset=rows,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(args.out)


if __name__ == "__main__":
    main()
