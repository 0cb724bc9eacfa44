"""segmentation-models-pytorch: a Unet with BatchNorm.

Needs: segmentation-models-pytorch==0.6.0
"""

import segmentation_models_pytorch as smp
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

t = Training()
net = smp.Unet(
    "timm-mobilenetv3_small_minimal_100",
    encoder_weights=None,
    encoder_depth=3,
    decoder_channels=(16, 8, 8),
    classes=1,
)
model = DDP(net, find_unused_parameters=True)
dice = smp.losses.DiceLoss("binary")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_of():
    x, y = torch.randn(2, 3, 32, 32), (torch.rand(2, 1, 32, 32) > 0.5).float()
    return dice(model(x), y)


t.optimize(optimizer, model, loss_of)
t.end(net, optimizer)
