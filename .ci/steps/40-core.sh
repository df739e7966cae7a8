#!/usr/bin/env bash
# Without libtorch: the core builds and passes its tests with a C++20 compiler and Debian's packages alone. The kernel
# templates' tests are the same as in the whole build and are not run twice.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
./dev build core >"$log" 2>&1 || { tail -n 40 "$log"; exit 1; }
ctest --test-dir build/core --output-on-failure -j"$(nproc)" -LE templates >"$log" 2>&1
rc=$?
grep -vE '^ *(Start +[0-9]+:|[0-9]+/[0-9]+ Test .* Passed )' "$log"
exit $rc
