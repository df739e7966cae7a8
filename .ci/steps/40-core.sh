#!/usr/bin/env bash
# Without libtorch: the core builds and passes its unit tests with a C++20 compiler and Debian's packages alone. Its objects are
# those of the whole build and come from the compiler cache; its kernel templates' tests ran there and do not run twice.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
./dev build core >"$log" 2>&1 || { tail -n 40 "$log"; exit 1; }
if ldd build/core/lib/libniche.so | grep -E 'torch|c10'; then echo "libniche.so of the core needs libtorch"; exit 1; fi
ctest --test-dir build/core --output-on-failure -j"$(nproc)" -L unit -LE templates >"$log" 2>&1
rc=$?
grep -vE '^ *(Start +[0-9]+:|[0-9]+/[0-9]+ Test .* Passed )' "$log"
exit $rc
