"""speechbrain: augmentation of waves, features with running statistics, a schedule of its own.

Needs: speechbrain==1.1.2 torchaudio==2.11.1
"""

import torch
from speechbrain.augment.time_domain import DropChunk, DropFreq
from speechbrain.lobes.features import Fbank
from speechbrain.nnet.schedulers import NoamScheduler
from speechbrain.processing.features import InputNormalization
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training, batches

import taskd

t = Training()
features, normalize = Fbank(n_mels=20), InputNormalization()
augment = torch.nn.Sequential(DropFreq())
chunks = DropChunk(drop_length_low=50, drop_length_high=100)
model = DDP(torch.nn.GRU(20, 8, batch_first=True))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = NoamScheduler(1e-2, 8)
t.apart()
job = taskd.protect(model=model, optimizer=optimizer)
lengths = torch.ones(4)
for attempt in job.batches(list(batches(4 * t.steps, 1600, 4))):
    step = attempt.step
    with attempt as (_, waves):
        waves = chunks(augment(waves), lengths)
        mels = normalize(features(waves), lengths)
        loss = model(mels)[0].square().mean()
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule(optimizer)
    if attempt.committed:
        t.say(step, loss, waves, schedule.current_lr)
t.end(model, optimizer, normalize)
