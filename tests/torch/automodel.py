"""Compares `recvpool plan` with the ring sizes of nemo-automodel's receive buffer pool, the existing practice for 1F1B.

    python automodel.py RECV_BUFFER_POOL.py ; program: RECVPOOL in the environment
"""

import importlib.util
import json
import os
import subprocess
import sys
from types import SimpleNamespace

RECVPOOL = os.environ["RECVPOOL"]


def load(path):
    spec = importlib.util.spec_from_file_location("recv_buffer_pool", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    pool = load(sys.argv[1])
    compared = 0
    for stages in (1, 2, 4, 8, 16):
        for microbatches in (1, 2, 3, 4, 8, 16, 32, 64):
            for slack in (0, 1, 2, 5):
                command = [RECVPOOL, "plan", "--schedule", "1f1b", "--stages", str(stages), "--microbatches",
                           str(microbatches), "--slack", str(slack), "--json"]
                document = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                for rank in document["ranks"]:
                    for p in rank["pools"]:
                        stage = SimpleNamespace(num_stages=stages, stage_index=p["stage"])
                        theirs = pool._ring_size(stage, microbatches, slack)
                        assert p["existing_practice_slots"] == theirs, (stages, microbatches, slack, p)
                        if microbatches > 1:
                            assert p["slots"] <= theirs, (stages, microbatches, slack, p)
                        compared += 1
    assert pool.schedule_supports_recv_pool("1f1b") and not pool.schedule_supports_recv_pool("gpipe")
    print(f"nemo-automodel: {compared} ring sizes agree, and ours are never more")


if __name__ == "__main__":
    main()
