"""peft: LoRA over a small transformers model.

Needs: peft==0.21.2
"""

import llama
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

t = Training()
net = get_peft_model(llama.small(), LoraConfig(r=4, lora_dropout=0.1))
model = DDP(net)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def loss_of():
    tokens = torch.randint(64, (2, 12))
    return model(input_ids=tokens, labels=tokens).loss


t.optimize(optimizer, model, loss_of)
t.end(net, optimizer)
