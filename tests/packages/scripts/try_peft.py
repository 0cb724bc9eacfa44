"""peft: LoRA over a small transformers model.

Needs: peft==0.21.2
"""

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training
from transformers import LlamaConfig, LlamaForCausalLM

import taskd

t = Training()
config = LlamaConfig(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
)
net = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=4, lora_dropout=0.1))
model = DDP(net)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
t.apart()
job = taskd.protect(model=model, optimizer=optimizer)
for attempt in job.steps(t.steps):
    with attempt as step:
        tokens = torch.randint(64, (2, 12))
        loss = model(input_ids=tokens, labels=tokens).loss
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if attempt.committed:
        t.say(step, loss)
t.end(net, optimizer)
