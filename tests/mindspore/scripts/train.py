"""Trains with MindSpore's own Model.train and TrainFaultTolerance on the CPU; what stands in for
the device is in host_device.py.

    msrun … train.py STEPS MODE [FAULT RANK STEP]

MODE: pynative or graph. FAULT: uce, an on-chip memory fault of that rank after that step. Each
step's line has the process, the step and a checksum of the parameters. HOLD: a step after which all
wait until there is a file `go`.
"""

import os
import sys
import time
from pathlib import Path

import mindspore
import numpy as np
from host_device import Hosts, install, ports, without_operators
from mindspore import Tensor, nn, ops
from mindspore.communication import get_group_size, get_rank, init
from mindspore.train import Callback, Model
from mindspore.train.callback import TrainFaultTolerance
from mindspore.utils.utils import _tft_handler

STEPS, MODE, FAULT = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
WIDTH = 8

mindspore.set_context(mode=mindspore.PYNATIVE_MODE if MODE == "pynative" else mindspore.GRAPH_MODE)
mindspore.set_device("CPU")
new = os.environ.get("TASKD_INCARNATION", "0") != "0"
mindspore.set_seed(7 if new else 3)  # a new process begins with wrong parameters
init()
rank, world = get_rank(), get_group_size()
mindspore.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=False)
hosts = Hosts(rank, world, ports())
install(hosts)
_tft_handler.init(config=None)
tft = _tft_handler.get_tft()
hosts.connect()


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(WIDTH, WIDTH)
        self.second = nn.Dense(WIDTH, WIDTH)
        self.loss = nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.second(ops.tanh(self.first(x))), y)


class Step(nn.Cell):
    """One step: gradients, their sum over the hosts, the update."""

    def __init__(self, network, optimizer):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer = network, optimizer
        self.gradients = ops.value_and_grad(network, None, optimizer.parameters)
        self.first = new

    def construct(self, x, y):
        loss, gradients = self.gradients(x, y)
        if self.first:
            # what MindSpore raises in a new process's first step on a device
            self.first = False
            raise RuntimeError("ARF FINISH , do next step repair weight.")
        gradients = tuple(Tensor(hosts.sum(g.asnumpy()) / world) for g in gradients)
        tft.tft_start_updating_os(-1)  # the operator TensorReport calls this in C on a device
        self.optimizer(gradients)
        return loss


class Steps(Callback):
    def __init__(self):
        super().__init__()
        self.done = False

    def on_train_step_end(self, run_context):
        p = run_context.original_args()
        total = sum(
            float(np.abs(v.asnumpy().astype(np.float64)).sum()) for v in optimizer.parameters
        )
        with open(f"steps.{rank}", "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {p.cur_step_num} {total.hex()} {time.time():.4f}\n")
        while str(p.cur_step_num) == os.environ.get("HOLD") and not Path("go").exists():
            time.sleep(0.01)
        if not FAULT or p.cur_step_num != int(FAULT[2]):
            return
        if rank == int(FAULT[1]) and not Path("fault").exists():
            Path("fault").write_text(str(time.time()))
            raise RuntimeError("UCEError error occurs when execute, error_code=507053")
        # a collective of MCCL cannot be stopped: the others wait here
        due = time.monotonic() + 20
        while MODE == "graph" and time.monotonic() < due:
            tft.tft_pause_train(p.cur_step_num)  # raises when the rank is stopped
            time.sleep(0.01)


def batches():
    dice = np.random.RandomState(11 + rank)
    for _ in range(STEPS):
        x = dice.randn(4, WIDTH).astype(np.float32)
        yield x, np.roll(x, 1, axis=1)


network = Net()
optimizer = TrainFaultTolerance.get_optimizer_wrapper(nn.Momentum)(
    network.trainable_params(), learning_rate=0.05, momentum=0.9
)
without_operators(optimizer, world)
step = Step(network, optimizer) if MODE == "pynative" else nn.TrainOneStepCell(network, optimizer)
step.set_train()
dataset = mindspore.dataset.GeneratorDataset(list(batches()), ["x", "y"], shuffle=False)
callback = TrainFaultTolerance(ckpt_save_path="checkpoints")
Model(step).train(1, dataset, callbacks=[callback, Steps()], dataset_sink_mode=False)
Path(f"end.{rank}").write_text("ok")
