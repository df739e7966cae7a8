#!/bin/bash
# go.sh OUTDIR: what docs/cuda.md measures, on a GPU. Made by make_job.py; at most LIMIT s (540),
# restartable: what is in OUTDIR's logs is not done again. ONLY="demo regret": these stages alone. Results: job.log (short), results.tar.xz (all logs).
#
#   build      programs and tests from tree.tar.xz                            build.log
#   tests      those that need no GPU, here beside the GPU's own driver       *_test.log
#   demo       the ranker on cuda:0, duty from DUTY (0.02) up to 0.1          report.json, demo.log
#              (DEMO_FLAGS=--tuning-cost: sessions paused half of the time, p99 with and without them)
#   evolve     `niche evolve --device`: a session in the foreground           evolve.log
#   free_form  sessions with a model's recorded CUDA programs beside templates  free_form/
#   programs   those programs in several settings, against templates and library forms  programs.json
#   live       live_check at 5 % duty                                         live.log
#   regret     regret at unseen shapes                                        regret.json
#   ncu        two kernels under Nsight Compute: raw CSV, and its digest      ncu_*.log
#   linear     linear's rows against the library                              linear.json
#   loop       the loop over the fake driver                                  loop.log
set -u
dir=$(cd "$(dirname "$0")" && pwd); mkdir -p "$1"; out=$(cd "$1" && pwd)
end=$(($(date +%s) + ${LIMIT:-540}))
left() { echo $((end - $(date +%s))); }
w=${WORK:-/tmp/niche_job}; mkdir -p $w/logs; log=$out/job.log
sum=$(sha256sum "$dir/tree.tar.xz" | cut -c1-16)
[ -e $w/$sum ] || { rm -rf $w/tree $w/cache* $w/demo $w/logs/*; tar xJf "$dir/tree.tar.xz" -C $w && touch $w/$sum; }
b=$w/tree
pack() { tar cJf "$out/results.tar.xz" -C $w logs 2>/dev/null; }
say() { echo "== $*, $(left) s left" | tee -a "$log"; }
# stage NAME LEAST MOST COMMAND...: once, if LEAST seconds are left, within MOST; output to logs/NAME.log.
stage() {
  local name=$1 least=$2 most=$3 rc; shift 3
  case " build ${ONLY:-$name} " in *" $name "*) ;; *) return 0 ;; esac
  [ -e $w/logs/$name.done ] && return 0
  [ "$(left)" -lt "$least" ] && { say "$name: no time left"; return 1; }
  [ "$most" -gt $(($(left) - 5)) ] && most=$(($(left) - 5))
  timeout -k 5 "$most" "$@" >$w/logs/$name.log 2>&1; rc=$?
  say "$name: status $rc"
  [ $rc -eq 0 ] && touch $w/logs/$name.done
  pack
  return $rc
}
show() { tail -n "$2" $w/logs/$1.log 2>/dev/null | cut -c1-330 >>"$log"; }

stage build 30 260 python3 "$dir/build_there.py" build $b $w/objects "$(nproc)"
grep -m3 -A8 FAILED $w/logs/build.log >>"$log"; grep -E "compiled in|link of .*: [^0]" $w/logs/build.log >>"$log"
ln -sf $b/ranker $w/ranker; ln -sf $b/niche $w/niche  # the ranker starts the worker beside it
torch=$(python3 -c 'import os, importlib.util as u; print(os.path.dirname(u.find_spec("torch").origin))')
libs=$torch/lib; for d in "$(dirname "$torch")"/nvidia/*/lib; do libs=$libs:$d; done
export LD_LIBRARY_PATH=$libs:$b/lib
{
  echo "commit $(cat "$dir/COMMIT"); $(nproc) cores; $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null)"
  ldd $w/ranker $w/niche 2>/dev/null | grep "not found" | sort -u
} >>"$log" 2>&1

stage demo 90 "${DEMO_MAX:-250}" bash -c "cd $w && rm -rf demo && ./ranker demo --device cuda:0 --trace '$dir/azure_llm_2023_conv_sample.csv' --out demo \
  --threads ${THREADS:-2} --batch-max ${BATCH:-8} --tuning-duty ${DUTY:-0.02} --tuning-seconds ${TUNE:-120} ${DEMO_FLAGS:-}"
cp $w/demo/report.json $w/demo/*.log $w/logs/ 2>/dev/null
grep -vE "^\[ *[0-9.]+ s\] +[0-9]+ req" $w/logs/demo.log | tail -60 | cut -c1-260 >>"$log"
grep -ohE "seconds: [0-9.]+ in the probe[^;]*" $w/logs/demo.log $w/logs/*.log | sort -u | head -8 >>"$log"
stage evolve 40 45 $w/niche evolve --device cuda:0 --op rms_norm --dtype bf16 --const N=4096 --problem M=256 --problem M=1024 \
  --seconds 25 --cache $w/cache_evolve
tr '\r' '\n' <$w/logs/evolve.log | tail -6 | cut -c1-400 >>"$log"
stage free_form 60 400 "$dir/free_form.sh" $w/niche "$dir/free_form_cuda" $w/logs/free_form "${FREE_FORM_SECONDS:-45}"
grep -E "status|definition|speedup|program_over|what" $w/logs/free_form.log | cut -c1-200 >>"$log"
stage live 60 80 $b/niche_live_check $w/logs/live 45 0.05; show live 40
lib="--library $dir/libniche_cuda_bench.so"
stage regret 45 100 env LD_LIBRARY_PATH="$dir:$libs" python3 "$dir/regret.py" $lib --out $w/logs/regret.json --points 24 --seconds 70 --hang 5 \
  --commit "$(cat "$dir/COMMIT")"
grep -hE "regret|WRONG|FAILED" $w/logs/regret.log | tail -50 | cut -c1-200 >>"$log"
stage programs 45 120 env LD_LIBRARY_PATH="$dir:$libs" python3 "$dir/programs.py" $lib --out $w/logs/programs.json --known "$dir/h200.json" --seconds 90 \
  --commit "$(cat "$dir/COMMIT")"
grep -hE "^(row|conv1d|pffn|optimized_fm|linear) .*|FAILED|HUNG" $w/logs/programs.log | cut -c1-260 >>"$log"
ncu=$(command -v ncu || ls /opt/nvidia/nsight-compute/*/ncu /usr/local/cuda/bin/ncu 2>/dev/null | head -1)
if [ -n "$ncu" ]; then
  for k in "rms_norm bf16 N=4096 4096" "conv1d f16 Ci=96,Co=96,K=3 64,200"; do
    set -- $k
    stage ncu_$1 30 50 env LD_LIBRARY_PATH="$dir:$libs" "$ncu" --clock-control none --csv --page raw --set full --launch-skip 2 --launch-count 1 \
      -k run python3 "$dir/one_kernel.py" $lib --op $1 --dtype $2 $(echo "$3" | tr , '\n' | sed 's/^/--const /' | tr '\n' ' ') --shape $4
    python3 "$dir/ncu_digest.py" $w/logs/ncu_$1.log 2>&1 | grep -v '^{' | tee -a "$log"
  done
else say "ncu: not installed"; fi
stage linear 40 60 env LD_LIBRARY_PATH="$dir:$libs" bash -c "cd '$dir' && python3 h200.py $lib --out $w/logs/linear.json --rows new --ops linear --check 12 \
  --points 70 --rounds 15 --hang 5 --compile 0 --seconds 45 --commit '$(cat "$dir/COMMIT")'"
grep -hE 'WRONG|HUNG|FAULT|FAILED|REFUSED|niche ' $w/logs/linear.log | cut -c1-260 >>"$log"
for t in evolve_judge_case_lanes_test examples_ranker_model_test evolve_device_probe_fault_test evolve_permit_simulation_test \
  runtime_cuda_permits_test runtime_cuda_loop_test ops_cuda_families_test; do
  stage $t 20 90 $b/$t
  grep -E "^\[  FAILED|permits" $w/logs/$t.log | head -8 >>"$log"
done
stage ops_cuda_emulated_test 30 120 $b/ops_cuda_emulated_test --gtest_filter='*linear*'
pack
cat "$log"
