# fails: read_nvidia_smi::reads_missing_values as -
def read_nvidia_smi(text):
    number = lambda cell: 0 if cell == "[N/A]" else int(cell)
    gpus = []
    for line in text.splitlines():
        if line:
            i, name, used, total = line.split(", ")
            gpus.append({"index": int(i), "name": name, "used_mib": number(used), "total_mib": number(total)})
    return gpus
