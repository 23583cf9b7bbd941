"""Records what a job of torch.distributed.pipelining does with its receive buffers, by watching its Python objects: the
receives that its stages post, and every operator that is given a tensor in such a buffer. The record has the form of the
trainer's (tests/e2e/truth.py).
"""
import json
import os
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operators that make another tensor object of the same memory, or read its description only: no launch, no copy.
SILENT = {"detach", "alias", "lift_fresh", "_reshape_alias", "_unsafe_view", "is_same_size", "_version", "record_stream",
          "empty_like", "new_empty", "new_empty_strided", "set_"}


class Lifetime:
    def __init__(self, stage, direction, microbatch, tensor, peer):
        self.stage, self.direction, self.microbatch, self.peer = stage, direction, microbatch, peer
        self.address, self.bytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        self.posted, self.posted_sequence, self.last_sequence = None, None, 0
        self.accesses, self.first, self.last, self.operator = 0, None, None, None


class Recorder(TorchDispatchMode):
    """To be entered around the steps of a job whose stages are all given to watch()."""

    def __init__(self):
        super().__init__()
        self.lock = threading.RLock()
        self.sequence, self.step = 0, 0
        self.live = {}     # address -> its latest lifetime
        self.named = {}    # id of a P2POp -> lifetime, until it is posted
        self.lifetimes, self.done = [], []
        self.posting = False
        self.ordinals = {}
        self.batch = schedules._batch_p2p  # every version's schedules post through it
        schedules._batch_p2p = self.post

    # ---- receives ----

    def watch(self, stage):
        self.ordinals[stage.stage_index] = len(self.ordinals)
        for direction, name in (("activation", "get_fwd_recv_ops"), ("gradient", "get_bwd_recv_ops")):
            setattr(stage, name, self.naming(stage, direction, getattr(stage, name)))

    def naming(self, stage, direction, get_ops):
        def wrapped(microbatch):
            ops = get_ops(microbatch)
            for op in ops:
                self.named[id(op)] = Lifetime(stage.stage_index, direction, microbatch, op.tensor, op.peer)
            return ops
        return wrapped

    def post(self, ops, desc=None):
        """In place of _batch_p2p, which may call itself for parts of the list."""
        if self.posting:
            return self.batch(ops, desc=desc)
        self.posting = True
        before = time.monotonic_ns()
        try:
            works = self.batch(ops, desc=desc)
        finally:
            self.posting = False
        after = time.monotonic_ns()
        with self.lock:
            for op in ops:
                lifetime = self.named.pop(id(op), None)
                if lifetime is None:
                    if op.op is dist.isend:
                        self.access([op.tensor], "send", before, after)
                    continue
                self.sequence += 1
                lifetime.posted, lifetime.posted_sequence = [before, after], self.sequence
                self.lifetimes.append(lifetime)
                self.live[lifetime.address] = lifetime
        return works

    # ---- accesses ----

    def access(self, values, operator, before, after):
        touched = set()
        for value in values:
            if not isinstance(value, torch.Tensor) or value.device.type != "cuda" or not value.numel():
                continue
            address = value.data_ptr()
            touched |= {l for l in self.live.values() if l.address <= address < l.address + l.bytes}
        for lifetime in touched:
            self.sequence += 1
            lifetime.accesses += 1
            lifetime.first = lifetime.first or [before, after]
            lifetime.last, lifetime.last_sequence, lifetime.operator = [before, after], self.sequence, operator

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        before = time.monotonic_ns()
        result = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        if not operator.is_view and name not in SILENT and operator.namespace != "c10d":
            with self.lock:
                values = tree_leaves((args, kwargs)) + tree_leaves(result)
                self.access(values, name, before, time.monotonic_ns())
        return result

    # ---- the record ----

    def end_step(self):
        with self.lock:
            for lifetime in self.lifetimes:
                lifetime.step = self.step
            self.done += self.lifetimes
            self.lifetimes = []
            self.step += 1

    def depth(self, lifetimes):
        return max((sum(o.posted_sequence <= l.posted_sequence and (o.last_sequence > l.posted_sequence or o is l)
                        for o in lifetimes) for l in lifetimes), default=0)

    def write(self, path, **summary):
        channels = {}
        for lifetime in self.done:
            channels.setdefault((lifetime.stage, lifetime.direction), []).append(lifetime)
        with open(path, "w") as file:
            def line(**values):
                file.write(json.dumps(values) + "\n")
            for l in self.done:
                line(type="lifetime", step=l.step, stage=l.stage, stage_ordinal=self.ordinals[l.stage],
                     microbatch=l.microbatch, direction=l.direction, address=hex(l.address), bytes=l.bytes, peer=l.peer,
                     posted_ns=l.posted, first_access_ns=l.first or [0, 0], last_access_ns=l.last or [0, 0],
                     last_kernel=l.operator, accesses=l.accesses)
            for (stage, direction), lifetimes in channels.items():
                steps = [[l for l in lifetimes if l.step == step] for step in range(self.step)]
                line(type="channel", stage=stage, stage_ordinal=self.ordinals[stage], direction=direction,
                     peer=lifetimes[0].peer, buffers=len({l.address for l in lifetimes}), bytes=lifetimes[0].bytes,
                     depth_per_step=[self.depth(step) for step in steps], receives_per_step=[len(step) for step in steps])
            line(type="summary", pid=os.getpid(), steps=self.step, comm_address=None, **summary)
