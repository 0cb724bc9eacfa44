"""transformers: its Trainer, over a small model.

Needs: transformers==5.24.0 accelerate==1.15.0
"""

import os

import llama
import torch
from training import Training
from transformers import Trainer, TrainingArguments

from taskd.integrations.transformers import protect

t = Training()
drawn = torch.Generator().manual_seed(1)
rows = [torch.randint(64, (12,), generator=drawn) for _ in range(8 * t.steps)]
data = [{"input_ids": row, "labels": row} for row in rows]
trainer = Trainer(
    model=llama.small(),
    args=TrainingArguments(
        output_dir=os.environ["OUT"] + "/hf",
        per_device_train_batch_size=4,
        max_steps=t.steps,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        logging_steps=1,
        disable_tqdm=True,
        ddp_backend="gloo",
    ),
    train_dataset=data,
    callbacks=[llama.At(t)],
)
protect(trainer)
trainer.train()
t.end(trainer.model, trainer.state.global_step)
