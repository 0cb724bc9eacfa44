"""torch_geometric: graphs in its own loader, a GCN.

Needs: torch_geometric==2.8.1
"""

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, global_mean_pool
from training import Training

import taskd

t = Training()
drawn = torch.Generator().manual_seed(t.rank)
graphs = [
    Data(
        x=torch.randn(6, 4, generator=drawn),
        edge_index=torch.randint(6, (2, 10), generator=drawn),
        y=torch.randn(1, generator=drawn),
    )
    for _ in range(96)
]
net = GCN(4, 8, 2, 1)
model = DDP(net)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
t.apart()
loader = DataLoader(graphs, batch_size=4, shuffle=True)
job = taskd.protect(model=model, optimizer=optimizer)
for attempt in job.batches(loader):
    step = attempt.step
    with attempt as (_, graph):
        out = global_mean_pool(model(graph.x, graph.edge_index), graph.batch)
        loss = (out[:, 0] - graph.y).square().mean()
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if attempt.committed:
        t.say(step, loss)
t.end(net, optimizer)
