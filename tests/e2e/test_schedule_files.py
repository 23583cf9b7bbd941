"""The same comparison as test_matrix.py for schedules that torch itself lowered, split backward among them."""

import glob
import os

import support
import test_matrix
import truth
from support import SOURCE


class ScheduleFileTest(test_matrix.MatrixCase):
    pass


def limits_of(schedule, allocation):
    """Which of the known limits apply: LoopedBFS receives its gradients backwards, V schedules fold the pipeline."""
    limits = []
    if schedule == "LoopedBFS" and allocation == "just_in_time":
        limits.append(truth.RECEIPT_ORDER)
    if schedule in ("ZBVZeroBubble", "DualPipeV"):
        limits.append(truth.STAGE_UNKNOWN)
    return limits


def add_tests():
    for index, path in enumerate(sorted(glob.glob(os.path.join(SOURCE, "tests/torch/data/torch-2.11/*.lowered.csv")))):
        name = os.path.basename(path).split(".")[0].replace("-", "_")
        ranks = int(name.split("_p")[1].split("_")[0])
        for allocation in ("preallocated", "just_in_time"):
            def test(self, path=path, ranks=ranks, allocation=allocation, index=index,
                     limits=limits_of(name.split("_")[0], allocation)):
                self.check("--schedule", path, "--allocation", allocation, ranks=ranks, seed=index + 1, limits=limits)
            setattr(ScheduleFileTest, f"test_{name}_{allocation}", test)


add_tests()
