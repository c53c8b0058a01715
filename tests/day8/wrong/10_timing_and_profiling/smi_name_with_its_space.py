# fails: read_nvidia_smi::reads_every_gpu as -
import time

import torch


def read_nvidia_smi(text):
    gpus = []
    for line in text.split("\n"):
        if not line:
            continue
        index, name, used, total = line.split(",")
        gpus.append(
            {
                "index": int(index),
                "name": name,
                "used_mib": int(used) if used.strip() != "[N/A]" else None,
                "total_mib": int(total) if total.strip() != "[N/A]" else None,
            }
        )
    return gpus
