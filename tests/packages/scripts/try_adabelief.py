"""AdaBelief.

Needs: adabelief-pytorch==0.2.1
"""

from adabelief_pytorch import AdaBelief
from training import Training, small

t = Training()
model = small()
optimizer = AdaBelief(model.parameters(), lr=1e-3, print_change_log=False)
t.optimize(optimizer, model)
t.end(model, optimizer)
