#!/usr/bin/env bash
# A few jobs of real PyTorch as part of all tests, where RECVPOOL_TORCH_TESTS is set: few.sh BUILD_FOLDER. Status 77: skipped.
if [ -z "${RECVPOOL_TORCH_TESTS:-}" ]; then
  echo "skipped: torch takes 4.5 GB of disk once installed, and its jobs minutes of two cores; RECVPOOL_TORCH_TESTS=1 runs a" \
    "few of them, and tests/torch/run.sh all"
  exit 77
fi
exec bash "$(dirname "${BASH_SOURCE[0]}")/run.sh" --torch 2.11.0 --only jobs --test test_framework.FrameworkTest.test_plain \
  --test test_framework.FrameworkTest.test_gpipe_keeps_its_activations --test test_enforcing.EnforcingTest.test_1F1B_R2_N8 "$1"
