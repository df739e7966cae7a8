#!/usr/bin/env python3
"""Checks that the README's first C++ block is examples/quickstart/quickstart.cc, so that what it shows compiles."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
block = re.search(r"```cpp\n(.*?)```", (root / "README.md").read_text(), re.S)
source = (root / "examples/quickstart/quickstart.cc").read_text()
if not block or block.group(1) != source:
    print("README.md: the first cpp block differs from examples/quickstart/quickstart.cc; copy the file into it")
    sys.exit(1)
print("README.md shows examples/quickstart/quickstart.cc")
