"""lion-pytorch: its optimizer.

Needs: lion-pytorch==0.2.5
"""

import lion_pytorch
from training import Training, small

t = Training()
model = small()
optimizer = lion_pytorch.Lion(model.parameters(), lr=1e-3)
t.optimize(optimizer, model)
t.end(model, optimizer)
