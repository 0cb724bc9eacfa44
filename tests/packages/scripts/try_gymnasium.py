"""gymnasium: a policy gradient in cleanrl's style; vector environments keep their state themselves.

Needs: gymnasium==1.4.0
"""

import gymnasium as gym
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

import taskd

t = Training()
agent = DDP(torch.nn.Linear(4, 2))
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2)
t.apart()
envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(4)])
observed, _ = envs.reset(seed=t.rank)
job = taskd.protect(model=agent, optimizer=optimizer)
for attempt in job.steps(t.steps):
    with attempt as step:
        loss, got = 0, 0.0
        for _ in range(16):
            policy = torch.distributions.Categorical(
                logits=agent(torch.as_tensor(observed, dtype=torch.float32))
            )
            action = policy.sample()
            observed, reward, over, _, _ = envs.step(action.numpy())
            got += float(reward.sum())
            gain = torch.as_tensor(reward + over * -5.0)
            loss = loss - (policy.log_prob(action) * gain).mean()
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if attempt.committed:
        t.say(step, loss, got, float(observed.sum()))
t.end(agent, optimizer)
