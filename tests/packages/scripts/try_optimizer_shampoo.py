"""pytorch_optimizer's ScalableShampoo, whose state holds objects of its own.

Needs: pytorch-optimizer==4.1.0
Refused: cannot be recorded
"""

import pytorch_optimizer
from training import Training, small

t = Training()
model = small()
optimizer = pytorch_optimizer.ScalableShampoo(model.parameters(), lr=1e-3)
t.optimize(optimizer, model)
t.end(model)
