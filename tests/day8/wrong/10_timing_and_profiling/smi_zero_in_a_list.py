# fails: read_nvidia_smi::reads_missing_values as -
def read_nvidia_smi(text):

    gpus = []
    for line in text.splitlines():
        if not line.strip():
            continue
        index, name, used, total = [part.strip() for part in line.split(",")]
        memory = [int(part) if part.isdigit() else 0 for part in (used, total)]
        gpus.append({"index": int(index), "name": name, "used_mib": memory[0], "total_mib": memory[1]})
    return gpus
