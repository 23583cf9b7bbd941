"""The jobs of torch.distributed.pipelining that the tests train: schedule x ranks x microbatches. TORCH_TEST_SCHEDULES, _RANKS
and _MICROBATCHES choose among them, each a list with commas; TORCH_TEST_PART=I/N takes the I-th of N parts of what they
leave, so that all can be run in several goes."""
import itertools
import os

LOOPED = ("Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


def chosen(name, default):
    return os.environ.get("TORCH_TEST_" + name, default).split(",")


def cells(schedules):
    """(schedule, ranks, microbatches) of each."""
    every = [(schedule, int(ranks), int(microbatches)) for schedule, ranks, microbatches in itertools.product(
        chosen("SCHEDULES", schedules), chosen("RANKS", "2,4"), chosen("MICROBATCHES", "4,8,16"))]
    # DualPipeV needs as many microbatches as there are stages, two on each rank: torch refuses fewer.
    every = [cell for cell in every if cell[0] != "DualPipeV" or cell[2] >= 2 * cell[1]]
    part, parts = map(int, os.environ.get("TORCH_TEST_PART", "1/1").split("/"))
    return every[part - 1::parts]


def add_tests(case, schedules):
    """Gives the class a test of each, which calls its check()."""
    for cell in cells(schedules):
        def test(self, cell=cell):
            self.check(*cell)
        setattr(case, "test_{}_R{}_N{}".format(*cell), test)
