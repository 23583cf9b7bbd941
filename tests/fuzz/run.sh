#!/usr/bin/env bash
# Fuzzes the reader of schedule files and that of plan files, from the committed corpus.
#
#   tests/fuzz/run.sh BUILD_FOLDER [SECONDS each, default 10]
#
# New inputs stay in the build folder. Ends with 77 (skipped) where clang has no libFuzzer.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
work=${1:?the build folder is needed}/fuzz
seconds=${2:-10}
mkdir -p "$work"
if ! echo 'int LLVMFuzzerTestOneInput(const char *d, long n); int LLVMFuzzerTestOneInput(const char *d, long n) { return d == 0 && n; }' |
  clang -x c -fsanitize=fuzzer - -o "$work/probe" 2> /dev/null; then
  echo "clang with libFuzzer is needed; skipped"
  exit 77
fi
flags=(-std=gnu17 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -I "$source" -I "$source/include")
pool=("$source"/pool/*.c)
read -ra jansson < <(pkg-config --cflags --libs jansson)
clang "${flags[@]}" "$here/fuzz_schedule.c" "${pool[@]}" -o "$work/fuzz_schedule"
clang "${flags[@]}" "$here/fuzz_plan.c" "$source"/agent/{plan_file,plan_read,plan_receives,enforce_plan}.c "${pool[@]}" "${jansson[@]}" -o "$work/fuzz_plan"
for target in schedule plan; do
  mkdir -p "$work/found/$target"
  "$work/fuzz_$target" -max_total_time="$seconds" -max_len=4096 -rss_limit_mb=4096 -timeout=10 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="$work/" -dict="$here/$target.dict" "$work/found/$target" "$here/corpus/$target"
done
