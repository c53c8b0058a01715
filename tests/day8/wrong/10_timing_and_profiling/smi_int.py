# fails: read_nvidia_smi::reads_missing_values as -
def read_nvidia_smi(text):
    gpus = []
    for line in text.splitlines():
        if line:
            i, name, used, total = line.split(", ")
            gpus.append({"index": int(i), "name": name, "used_mib": int(used), "total_mib": int(total)})
    return gpus
