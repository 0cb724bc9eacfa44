"""GaLore: gradients of low rank, whose projector lies in the optimizer's state.

Needs: galore-torch==1.0
Refused: cannot be recorded
"""

from galore_torch import GaLoreAdamW
from training import Training, small

t = Training()
model = small()
matrices = [p for p in model.parameters() if p.dim() == 2]
others = [p for p in model.parameters() if p.dim() != 2]
low = {"params": matrices, "rank": 2, "update_proj_gap": 5, "scale": 0.25, "proj_type": "std"}
optimizer = GaLoreAdamW([{"params": others}, low], lr=1e-2)
t.optimize(optimizer, model)
t.end(model, optimizer)
