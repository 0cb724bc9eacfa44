"""heavyball: SOAP, with its schedule in the optimizer's own attributes.

Needs: heavyball==3.2.1
"""

import heavyball
from training import Training, small

heavyball.utils.compile_mode = None
t = Training()
model = small()
optimizer = heavyball.SOAP(model.parameters(), lr=3e-3)
t.optimize(optimizer, model)
t.end(model)
