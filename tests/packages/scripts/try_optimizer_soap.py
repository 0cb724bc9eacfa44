"""pytorch_optimizer's SOAP, which keeps lists of matrices.

Needs: pytorch-optimizer==4.1.0
"""

import pytorch_optimizer
from training import Training, small

t = Training()
model = small()
optimizer = pytorch_optimizer.SOAP(model.parameters(), lr=1e-3)
t.optimize(optimizer, model)
t.end(model)
