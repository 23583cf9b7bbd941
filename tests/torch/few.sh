#!/usr/bin/env bash
# Jobs of real PyTorch as part of all tests, where RECVPOOL_TORCH_TESTS is set: few.sh BUILD_FOLDER. A few of every kind, or
# with RECVPOOL_TORCH_TESTS=all every one, of torch 2.11.0 and of the newest. Status 77: skipped.
script=$(dirname "${BASH_SOURCE[0]}")/run.sh
run=(bash "$script" --only jobs)
case ${RECVPOOL_TORCH_TESTS:-} in
  '')
    echo "skipped: torch takes 4.5 GB of disk once installed, and its jobs minutes of two cores; RECVPOOL_TORCH_TESTS=1 runs" \
      "a few of them, and RECVPOOL_TORCH_TESTS=all, or tests/torch/run.sh, all"
    exit 77
    ;;
  all) exec "${run[@]}" "$1" ;;
esac
if ! timeout 900 bash "$script" --only environment --torch 2.11.0 "$1"; then
  echo "skipped: torch 2.11.0 could not be installed from PyPI within 15 minutes (4.5 GB of disk)"
  exit 77
fi
exec "${run[@]}" --torch 2.11.0 \
  --test test_framework.FrameworkTest.test_plain --test test_framework.FrameworkTest.test_gpipe_keeps_its_activations \
  --test test_framework.TorchrunTest.test_with_the_variable_only --test test_observing.TorchrunTest.test_1f1b \
  --test test_pipelines.PipelinesTest.test_1F1B_R2_N4 --test test_pipelines.PipelinesTest.test_ZBVZeroBubble_R2_N4 \
  --test test_enforcing.EnforcingTest.test_1F1B_R2_N8 --test test_enforcing.EnforcingTest.test_Interleaved1F1B_R2_N4 \
  --test test_enforcing.SmallBuffersTest.test_4_mib "$1"
