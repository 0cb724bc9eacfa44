"""pytorch_optimizer's Lookahead, which wraps another optimizer and keeps slow weights.

Needs: pytorch-optimizer==4.1.0
"""

import pytorch_optimizer
import torch
from training import Training, small

t = Training()
model = small()
optimizer = pytorch_optimizer.Lookahead(torch.optim.AdamW(model.parameters(), lr=1e-2), k=5)
t.optimize(optimizer, model)
t.end(model)
