# fails: read_nvidia_smi::runs as -
def read_nvidia_smi(text):
    gpus = []
    for line in text.splitlines():
        if line:
            index, name, used, total = line.split()
            gpus.append({"index": int(index), "name": name, "used_mib": int(used), "total_mib": int(total)})
    return gpus
