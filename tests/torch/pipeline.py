"""One rank of a small job of torch.distributed.pipelining: stages of elementwise operations, a schedule of torch, SGD.
The environment is torchrun's. With --record FOLDER what happens to its receive buffers is recorded there."""
import argparse
import contextlib
import hashlib
import importlib.util
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules

LOOPED = ("Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--stages-per-rank", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of one activation")
    parser.add_argument("--foreach", action="store_true", help="an optimizer that updates many tensors in one launch, torch's "
                        "default; its arithmetic is not simulated")
    parser.add_argument("--checkpoint", action="store_true", help="stages compute their forward again in the backward")
    parser.add_argument("--transformer", action="store_true", help="stages of matrix products")
    parser.add_argument("--layer", action="store_true", help="stages are transformer layers, whole; not simulated")
    parser.add_argument("--deterministic", action="store_true", help="torch's deterministic algorithms only")
    parser.add_argument("--pass-through", action="store_true", help="all stages but the first and the last return their input")
    parser.add_argument("--keep", choices=("hold", "read"), help="a forward hook keeps what was received; read: uses it "
                        "after the step")
    parser.add_argument("--evaluate", action="store_true", help="between the steps")
    parser.add_argument("--empty-cache", action="store_true", help="between the steps")
    parser.add_argument("--profile", action="store_true", help="with torch.profiler around all of it")
    parser.add_argument("--automodel", metavar="FILE", help="with the receive buffer pool of nemo-automodel, from its module")
    parser.add_argument("--time", action="store_true", help="says how long the fastest step took")
    parser.add_argument("--record", help="folder")
    return parser.parse_args()


class Stage(torch.nn.Module):
    def __init__(self, index, elements, checkpoint):
        super().__init__()
        self.checkpoint = checkpoint
        torch.manual_seed(index)
        self.weight = torch.nn.Parameter(torch.rand(1, elements) + 0.5)
        self.bias = torch.nn.Parameter(torch.rand(1, elements))

    def compute(self, x):
        return x * self.weight + self.bias

    def forward(self, x):
        if self.checkpoint:
            return torch.utils.checkpoint.checkpoint(self.compute, x, use_reentrant=False)
        return self.compute(x)


class Block(torch.nn.Module):
    """A transformer block of what is computed here: attention without its softmax, and a gated layer, by matrix products."""

    WIDTH, TOKENS = 16, 16

    def __init__(self, index):
        super().__init__()
        torch.manual_seed(index)
        self.weights = torch.nn.ParameterList(0.2 * (torch.rand(self.WIDTH, self.WIDTH) - 0.5) for _ in range(5))

    def forward(self, x):
        rows = x.view(-1, self.WIDTH)
        query, key, value = ((rows @ self.weights[i]).view(-1, self.TOKENS, self.WIDTH) for i in range(3))
        rows = rows + torch.bmm(torch.bmm(query, key.transpose(1, 2)), value).view(-1, self.WIDTH)
        return (rows + (rows @ self.weights[3]) * (rows @ self.weights[4])).view(x.shape)


class Layer(torch.nn.Module):
    """A transformer layer: attention of several heads and two linear layers, each behind a norm."""

    WIDTH, TOKENS, HEADS = 1024, 1024, 16

    def __init__(self, index):
        super().__init__()
        torch.manual_seed(index)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(self.WIDTH) for _ in range(2))
        self.projection = torch.nn.Linear(self.WIDTH, 3 * self.WIDTH)
        self.output = torch.nn.Linear(self.WIDTH, self.WIDTH)
        self.wide, self.narrow = torch.nn.Linear(self.WIDTH, 4 * self.WIDTH), torch.nn.Linear(4 * self.WIDTH, self.WIDTH)

    def attend(self, rows):
        parts = self.projection(rows).view(-1, self.TOKENS, 3, self.HEADS, self.WIDTH // self.HEADS)
        query, key, value = (parts[:, :, i].transpose(1, 2) for i in range(3))
        weights = torch.softmax(query @ key.transpose(2, 3) * (self.WIDTH // self.HEADS) ** -0.5, dim=-1)
        return self.output((weights @ value).transpose(1, 2).reshape(-1, self.WIDTH))

    def forward(self, x):
        rows = x.view(-1, self.WIDTH)
        rows = rows + self.attend(self.norms[0](rows))
        return (rows + self.narrow(torch.nn.functional.gelu(self.wide(self.norms[1](rows))))).view(x.shape)


class PassThrough(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x


class Loss(torch.autograd.Function):
    """sum(output * target), with a gradient that is no broadcast."""

    @staticmethod
    def forward(ctx, output, target):
        ctx.save_for_backward(target)
        return (output * target).sum()

    @staticmethod
    def backward(ctx, _):
        return ctx.saved_tensors[0].clone(), None


def local_stages(options, rank, world):
    """Indices of the stages of this rank."""
    stages = world * options.stages_per_rank
    if options.schedule in V_SHAPED:
        return [rank, stages - 1 - rank], stages
    return list(range(rank, stages, world)), stages


def module(options, index, count):
    if options.pass_through and 0 < index < count - 1:
        return PassThrough()
    if options.transformer:
        return Block(index)
    if options.layer:
        return Layer(index)
    return Stage(index, options.bytes // 4, options.checkpoint)


def build(options, rank, world, device):
    if options.schedule in V_SHAPED:
        options.stages_per_rank = 2
    indices, count = local_stages(options, rank, world)
    stages = [PipelineStage(module(options, i, count).to(device), i, count, device) for i in indices]
    kind = getattr(schedules, "Schedule" + options.schedule)
    multi = issubclass(kind, schedules.PipelineScheduleMulti)
    loss = lambda output, target: Loss.apply(output, target)
    return kind(stages if multi else stages[0], options.microbatches, loss_fn=loss), stages


class Keeper:
    """Keeps what the stages received, as a user's hook may."""

    def __init__(self, stages):
        self.kept = []
        for stage in stages:
            if not stage.is_first:
                stage.submod.register_forward_pre_hook(lambda _, inputs: self.kept.append(inputs[0]))

    def read(self):
        total = sum(tensor.detach().sum() for tensor in self.kept)
        self.kept = []
        return total


def batch(row, number, microbatches):
    """Microbatches that are cheap to make and all different."""
    return row + (0.01 * torch.arange(microbatches) + 0.1 * number).unsqueeze(1)


def install_automodel(path):
    spec = importlib.util.spec_from_file_location("recv_buffer_pool", path)
    pool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pool)
    if not pool.install_recv_buffer_pool():
        raise SystemExit("nemo-automodel's pool does not know this torch")


def train(options, schedule, stages, device, recorder, keeper):
    rate = 1e-9 if options.transformer or options.layer else 0.01  # its loss is a sum over millions of elements
    optimizer = torch.optim.SGD([p for s in stages for p in s.submod.parameters()], lr=rate, foreach=options.foreach)
    row = torch.rand((1, options.bytes // 4), generator=torch.Generator().manual_seed(7))
    first, last = any(s.is_first for s in stages), any(s.is_last for s in stages)
    seconds = []
    for step in range(options.steps):
        begun = time.perf_counter()
        data = batch(row, step, options.microbatches).to(device) if first else None
        target = batch(row, step + 0.5, options.microbatches).to(device) if last else None
        losses = []
        schedule.step(*([data] if first else []), target=target, losses=losses if last else None)
        if keeper and options.keep == "read":
            keeper.read()
        optimizer.step()
        optimizer.zero_grad()
        if recorder:
            recorder.end_step()
        if options.evaluate:
            schedule.eval(*([data] if first else []), target=target, losses=[] if last else None)
            if recorder:
                recorder.end_step()
        if options.empty_cache:
            torch.cuda.empty_cache()
        torch.cuda.synchronize()  # as a job does that prints its gradient norm
        if options.time:
            seconds.append(time.perf_counter() - begun)
        if last:
            loss = float(sum(l.item() for l in losses))
            print(f"step {step} loss {loss:.9g} {loss.hex()}", flush=True)
    if options.time:
        print(f"fastest step {min(seconds):.6f} s", flush=True)


def main():
    options = arguments()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(options.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # as in any other job
    dist.init_process_group("nccl", device_id=device)
    if options.automodel:
        install_automodel(options.automodel)
    schedule, stages = build(options, rank, world, device)
    keeper = Keeper(stages) if options.keep else None
    recorder = None
    with contextlib.ExitStack() as around:
        profile = None
        if options.profile:
            profile = around.enter_context(torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU,
                                                                    torch.profiler.ProfilerActivity.CUDA]))
        if options.record:
            from record import Recorder
            recorder = Recorder()
            for stage in stages:
                recorder.watch(stage)
            around.enter_context(recorder)
        train(options, schedule, stages, device, recorder, keeper)
    if profile:
        kernels = sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())
        print(f"profiled {kernels} kernels", flush=True)
    if recorder:
        recorder.write(os.path.join(options.record, f"rank-{rank}.jsonl"), rank=rank, microbatches=options.microbatches,
                       allocation="preallocated", schedule=options.schedule)
    free, total = torch.cuda.mem_get_info(device)  # of the driver, before the parameters are copied
    reserved = torch.cuda.memory_reserved(device)
    for stage in stages:
        data = b"".join(p.detach().cpu().numpy().tobytes() for p in stage.submod.parameters())
        print(f"stage {stage.stage_index} parameters {hashlib.sha256(data).hexdigest()[:32]}", flush=True)
    print(f"device peak {torch.cuda.max_memory_reserved(device)} held {total - free} for {reserved} of {rank}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
