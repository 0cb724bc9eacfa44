"""x-transformers: a decoder with dropout.

Needs: x-transformers==2.31.10
"""

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

t = Training()
net = AutoregressiveWrapper(
    TransformerWrapper(
        num_tokens=32,
        max_seq_len=16,
        attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dropout=0.1, ff_dropout=0.1),
    )
)
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_of():
    return model(torch.randint(32, (2, 16)))


t.optimize(optimizer, model, loss_of)
t.end(net, optimizer)
