"""stable-baselines3: its rollout buffer and its vector environments in a loop over ranks.

Needs: stable-baselines3==2.9.2 gymnasium==1.4.0
"""

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

import taskd

t = Training()
net = torch.nn.Linear(4, 3)
model = DDP(net)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
envs = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2))
envs.seed(t.rank)
observed = envs.reset()
buffer = RolloutBuffer(
    8, envs.observation_space, envs.action_space, device="cpu", gae_lambda=0.9, n_envs=2
)
begins = np.ones(2)
np.random.seed(t.rank)
t.apart()
job = taskd.protect(model=model, optimizer=optimizer)
for attempt in job.steps(t.steps):
    with attempt as step:
        buffer.reset()
        for _ in range(8):
            with torch.no_grad():
                out = net(torch.as_tensor(observed))
                policy = torch.distributions.Categorical(logits=out[:, :2])
                action = policy.sample()
            after, reward, over, _ = envs.step(action.numpy())
            likely, value = policy.log_prob(action), out[:, 2]
            buffer.add(observed, action[:, None].numpy(), reward, begins, value, likely)
            observed, begins = after, over
        buffer.compute_returns_and_advantage(out[:, 2], over)
        loss = 0
        for rows in buffer.get(8):
            out = model(rows.observations)
            policy = torch.distributions.Categorical(logits=out[:, :2])
            loss = loss - (policy.log_prob(rows.actions[:, 0]) * rows.advantages).mean()
            loss = loss + (out[:, 2] - rows.returns).square().mean()
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if attempt.committed:
        t.say(step, loss, float(observed.sum()))
t.end(net, optimizer)
