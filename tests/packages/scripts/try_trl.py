"""trl: its SFTTrainer, with packed rows of text and a tokenizer made here.

Needs: trl==1.16.0 transformers==5.24.0 accelerate==1.15.0 datasets==5.2.0
"""

import os
import random

import llama
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from training import Training
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from taskd.integrations.transformers import protect

t = Training()
words = ["<pad>", "<eos>", *(f"w{i}" for i in range(62))]
tokens = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<pad>"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>"
)
drawn = random.Random(1)
texts = [" ".join(drawn.choices(words[2:], k=drawn.randint(4, 20))) for _ in range(40 * t.steps)]
trainer = SFTTrainer(
    model=llama.small(),
    args=SFTConfig(
        output_dir=os.environ["OUT"] + "/trl",
        per_device_train_batch_size=4,
        max_steps=t.steps,
        max_length=32,
        packing=True,
        packing_strategy="wrapped",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        disable_tqdm=True,
        ddp_backend="gloo",
    ),
    train_dataset=Dataset.from_list([{"text": text} for text in texts]),
    processing_class=tokenizer,
    callbacks=[llama.At(t)],
)
protect(trainer)
trainer.train()
t.end(trainer.model, trainer.state.global_step)
