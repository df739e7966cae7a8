#!/usr/bin/env bash
# The CUDA half without a GPU: it builds, its host side survives an error at every driver call, and the corner points
# of every template compile for each architecture that their Guards name. Within 8 minutes on two cores, since what is
# not CUDA's own comes from the compiler cache that the whole build filled.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
./dev build cuda-core dispatch_cuda_device_test evolve_cuda_toolchain_test ops_cuda_families_test ops_cuda_compile_test \
  ops_cuda_emulated_test ops_cuda_free_form_test evolve_judge_device_digest_test evolve_permit_gate_test evolve_device_probe_fault_test evolve_test_probe runtime_cuda_call_test runtime_cuda_loop_test \
  runtime_cuda_permits_test niche_cuda_bench >"$log" 2>&1 || { tail -n 40 "$log"; exit 1; }
ctest --test-dir build/cuda-core --output-on-failure -j"$(nproc)" -R 'Cuda|Cubin|Architectures|Emulated|FreeForm|Occupancy|ComputeDigest|DevicePeaks|NcuReport|PermitGate|DeviceProbe|GraphSwap'
