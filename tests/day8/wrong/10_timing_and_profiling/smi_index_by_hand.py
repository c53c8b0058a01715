# fails: read_nvidia_smi::reads_every_gpu as -
def read_nvidia_smi(text):
    number = lambda cell: None if cell == "[N/A]" else int(cell)
    gpus = []
    for line in text.splitlines():
        if line:
            _, name, used, total = line.split(", ")
            gpus.append({"index": len(gpus), "name": name, "used_mib": number(used), "total_mib": number(total)})
    return gpus
