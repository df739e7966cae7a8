"""serve.py MODEL.gguf PORT CONTEXT: llama.cpp's own OpenAI-compatible server, out of the xllamacpp wheel (nothing to compile)."""
import sys
import time

import xllamacpp

p = xllamacpp.CommonParams()
p.model.path = sys.argv[1]
p.hostnames = ["127.0.0.1"]
p.port = int(sys.argv[2])
p.n_ctx = int(sys.argv[3])
p.n_parallel = 1
server = xllamacpp.Server(p)
print(server.listening_address, flush=True)
while True:
    time.sleep(3600)
