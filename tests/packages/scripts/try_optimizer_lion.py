"""pytorch_optimizer's Lion.

Needs: pytorch-optimizer==4.1.0
"""

import pytorch_optimizer
from training import Training, small

t = Training()
model = small()
optimizer = pytorch_optimizer.Lion(model.parameters(), lr=1e-3)
t.optimize(optimizer, model)
t.end(model)
