"""Dumps the schedules of the installed torch, before and after its lowering, and what each rank receives by an independent
calculation over torch's own action objects.

    python dump.py FOLDER [--small]           every schedule that torch has, over a grid
    python dump.py FOLDER --random COUNT      random orders on one rank

For every case NAME it writes NAME.compute.csv, NAME.lowered.csv and NAME.json.
"""

import json
import logging
import os
import random
import sys

import torch
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase

GRID = {"ranks": (2, 4, 8), "stages_per_rank": (1, 2, 4), "microbatches": (4, 8, 16, 32)}
SMALL = {"ranks": (2, 4), "stages_per_rank": (1, 2, 4), "microbatches": (8,)}
LOOPED = ("Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")  # always two stages per rank
# torch writes down an order of this one too, one stage per rank. (Its order of 1F1B leaves out the first microbatch on the
# last rank and serves only for pictures.)
SINGLE = ("GPipe",)


class PaperStage(_PipelineStageBase):
    """A stage without module and process group: enough for a schedule that is only written down."""

    def __init__(self, index, stages, ranks, rank):
        self.submod = None
        self.stage_index = index
        self.num_stages = stages
        self.group_size = ranks
        self.group_rank = rank
        self.group = None
        self.stage_index_to_group_rank = {}
        self.device = torch.device("cpu")


PaperStage.__abstractmethods__ = frozenset()  # which methods are abstract differs between versions; none is called


def build(name, ranks, per_rank, microbatches):
    """The finished schedule object, or None where torch refuses the numbers."""
    kind = getattr(schedules, "Schedule" + name)
    stages = ranks * per_rank
    local = range(0, stages, ranks) if name in LOOPED else (0, stages - 1)
    try:
        if name in SINGLE:
            return kind(PaperStage(0, ranks, ranks, 0), microbatches, loss_fn=lambda *_: None)
        return kind([PaperStage(i, stages, ranks, 0) for i in local], microbatches, loss_fn=lambda *_: None)
    except ValueError:
        return None


def orders(schedule, name):
    """The order of a schedule before and after lowering."""
    if hasattr(schedule, "pipeline_order_with_comms"):
        return schedule.pipeline_order, schedule.pipeline_order_with_comms
    order = getattr(schedule, "pipeline_order", None)
    if name in SINGLE:
        order = schedule._get_pipeline_order()
        order = {r: [a for a in row if a is None or a.is_compute_op] for r, row in order.items()}
    return order, lower(order, schedule._n_microbatches)


def lower(order, microbatches):
    """torch's own passes, for orders that no schedule object lowers."""
    stages = 1 + max(a.stage_index for row in order.values() for a in row if a is not None)
    home = {a.stage_index: r for r, row in order.items() for a in row if a is not None}
    comms = {r: schedules._add_unshard_reshard(row) for r, row in order.items()}
    if hasattr(schedules, "_add_reduce_grad"):
        comms = {r: schedules._add_reduce_grad(row, microbatches) for r, row in comms.items()}
    comms = schedules._add_send_recv(comms, stage_to_rank=lambda s: home[s], num_stages=stages)
    if hasattr(schedules, "_add_wait_send"):
        comms = schedules._add_wait_send(comms)
    return comms


def random_order(stages, microbatches):
    """Any order on one rank that respects what needs what: it drives the gathering of parameters in every way."""
    left = [(kind, s, k) for kind in "FB" for s in range(stages) for k in range(microbatches)]
    done, order = set(), []

    def possible(action):
        kind, s, k = action
        if kind == "F":
            return s == 0 or ("F", s - 1, k) in done
        return ("F", s, k) in done and (s == stages - 1 or ("B", s + 1, k) in done)

    while left:
        action = random.choice([a for a in left if possible(a)])
        left.remove(action)
        done.add(action)
        order.append(schedules._Action.from_str(f"{action[1]}{action[0]}{action[2]}"))
    return {0: order}


def receives(row):
    """What one rank receives: [stage, direction, microbatch, first position, last position], in order of posting."""
    live, result = {}, []
    for position, action in enumerate(row):
        for part in action.sub_actions or (action,):
            kind = part.computation_type.value
            key = (part.stage_index, part.microbatch_index)
            if kind in ("RECV_F", "RECV_B"):
                direction = "activation" if kind == "RECV_F" else "gradient"
                live[(direction, *key)] = len(result)
                result.append([part.stage_index, direction, part.microbatch_index, position, None])
            elif kind in ("B", "W"):
                for direction in ("activation", "gradient"):
                    if (direction, *key) in live:
                        result[live[(direction, *key)]][4] = position
    assert all(item[4] is not None for item in result)
    return result


def most_overlapping(intervals):
    """By definition: the most intervals that contain one position."""
    return max((sum(b <= t <= e for b, e in intervals) for t in {b for b, _ in intervals}), default=0)


def summary(comms):
    ranks = []
    for rank in sorted(comms):
        items = receives(comms[rank])
        pools = {}
        for stage, direction, _, begin, end in items:
            pools.setdefault((stage, direction), []).append((begin, end))
        slots = {
            "stage": sum(map(most_overlapping, pools.values())),
            "direction": sum(most_overlapping([i for (_, d), v in pools.items() if d == direction for i in v])
                             for direction in ("activation", "gradient")),
            "rank": most_overlapping([i for v in pools.values() for i in v]),
        }
        ranks.append({"rank": rank, "slots": slots, "receives": items,
                      "depth": sorted([s, d, most_overlapping(v)] for (s, d), v in pools.items())})
    return ranks


def write_csv(path, order):
    with open(path, "w", newline="") as file:
        for rank in sorted(order):
            file.write(",".join("" if a is None else str(a) for a in order[rank]) + "\r\n")


def write_case(folder, name, order, comms):
    case = os.path.join(folder, name)
    write_csv(case + ".compute.csv", order)
    write_csv(case + ".lowered.csv", comms)
    with open(case + ".json", "w") as file:
        json.dump({"torch": torch.__version__, "ranks": summary(comms)}, file)


def write_random(folder, count):
    random.seed(3)
    for number in range(count):
        stages, microbatches = random.randint(4, 20), random.randint(1, 4)
        order = random_order(stages, microbatches)
        write_case(folder, f"random-{number}", order, lower({0: list(order[0])}, microbatches))
    return count


def main():
    folder, grid = sys.argv[1], SMALL if "--small" in sys.argv else GRID
    os.makedirs(folder, exist_ok=True)
    logging.disable(logging.CRITICAL)
    if "--random" in sys.argv:
        count = write_random(folder, int(sys.argv[-1]))
        print(f"torch {torch.__version__}: {count} random orders written to {folder}")
        return
    count = 0
    for name in LOOPED + V_SHAPED + SINGLE:
        for ranks in grid["ranks"]:
            for per_rank in grid["stages_per_rank"]:
                if (name in V_SHAPED and per_rank != 2) or (name in SINGLE and per_rank != 1):
                    continue
                for microbatches in grid["microbatches"]:
                    schedule = build(name, ranks, per_rank, microbatches)
                    if schedule is None:
                        continue
                    order, comms = orders(schedule, name)
                    write_case(folder, f"{name}-p{ranks}-v{per_rank}-n{microbatches}", order, comms)
                    count += 1
    print(f"torch {torch.__version__}: {count} schedules written to {folder}")


if __name__ == "__main__":
    main()
