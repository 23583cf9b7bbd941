"""One rank of a small job of torch.distributed.pipelining: stages of elementwise operations, a schedule of torch, SGD.
The environment is torchrun's. With --record FOLDER what happens to its receive buffers is recorded there."""
import argparse
import os

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
    parser.add_argument("--record", help="folder")
    return parser.parse_args()


class Stage(torch.nn.Module):
    def __init__(self, index, elements):
        super().__init__()
        torch.manual_seed(index)
        self.weight = torch.nn.Parameter(torch.rand(1, elements) + 0.5)
        self.bias = torch.nn.Parameter(torch.rand(1, elements))

    def forward(self, x):
        return x * self.weight + self.bias


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


def build(options, rank, world, device):
    if options.schedule in V_SHAPED:
        options.stages_per_rank = 2
    indices, count = local_stages(options, rank, world)
    stages = [PipelineStage(Stage(i, options.bytes // 4).to(device), i, count, device) for i in indices]
    kind = getattr(schedules, "Schedule" + options.schedule)
    multi = issubclass(kind, schedules.PipelineScheduleMulti)
    loss = lambda output, target: Loss.apply(output, target)
    return kind(stages if multi else stages[0], options.microbatches, loss_fn=loss), stages


def main():
    options = arguments()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    schedule, stages = build(options, rank, world, device)
    optimizer = torch.optim.SGD([p for s in stages for p in s.submod.parameters()], lr=0.01,
                                foreach=options.foreach)
    recorder = None
    if options.record:
        from record import Recorder
        recorder = Recorder()
        for stage in stages:
            recorder.watch(stage)
        recorder.__enter__()
    generator = torch.Generator().manual_seed(7)
    for step in range(options.steps):
        shape = (options.microbatches, options.bytes // 4)
        data, target = (torch.rand(shape, generator=generator).to(device) for _ in range(2))
        losses = []
        first, last = any(s.is_first for s in stages), any(s.is_last for s in stages)
        schedule.step(*([data] if first else []), target=target if last else None, losses=losses if last else None)
        optimizer.step()
        optimizer.zero_grad()
        if recorder:
            recorder.end_step()
        if last:
            print(f"step {step} loss {sum(l.item() for l in losses):.9g}", flush=True)
    if recorder:
        recorder.__exit__(None, None, None)
        recorder.write(os.path.join(options.record, f"rank-{rank}.jsonl"), rank=rank, microbatches=options.microbatches,
                       allocation="preallocated", schedule=options.schedule)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
