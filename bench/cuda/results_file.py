"""The file that a run on a GPU goes on from: whole at any moment, whenever the run ends."""
import json
import os


def load_results(path):
    if not os.path.exists(path):
        return {"rows": []}
    with open(path) as f:
        return json.load(f)


def save_results(path, results):
    with open(path + ".part", "w") as f:
        json.dump(results, f, indent=1)
    os.replace(path + ".part", path)
