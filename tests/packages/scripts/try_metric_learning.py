"""pytorch-metric-learning: a memory of embeddings across steps, and a loss with weights of its own.

Needs: pytorch-metric-learning==2.9.0
"""

import torch
from pytorch_metric_learning import losses
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

import taskd

t = Training()
model = DDP(torch.nn.Linear(8, 16))
arc = losses.ArcFaceLoss(num_classes=4, embedding_size=16)
memory = losses.CrossBatchMemory(losses.ContrastiveLoss(), embedding_size=16, memory_size=64)
head = DDP(arc)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
t.apart()
job = taskd.protect(model=model, optimizer=optimizer)
for attempt in job.steps(t.steps):
    with attempt as step:
        x, y = torch.randn(8, 8), torch.randint(4, (8,))
        out = model(x)
        loss = head(out, y) + memory(out, y)
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if attempt.committed:
        t.say(step, loss)
t.end(model, arc, memory.embedding_memory)
