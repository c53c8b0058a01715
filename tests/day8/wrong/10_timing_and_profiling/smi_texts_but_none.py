# fails: read_nvidia_smi::reads_every_gpu as -
import time

import torch


def read_nvidia_smi(text):
    out = []
    for row in text.splitlines():
        if not row.strip():
            continue
        index, name, used, total = row.split(", ")
        out.append({"index": index, "name": name, "used_mib": used, "total_mib": total})
        for key in ("used_mib", "total_mib"):
            if out[-1][key] == "[N/A]":
                out[-1][key] = None
    return out
