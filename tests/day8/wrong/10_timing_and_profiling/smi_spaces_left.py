# fails: read_nvidia_smi::reads_every_gpu as -

def read_nvidia_smi(text):
    gpus = []
    for line in text.split("\n"):
        if line == "":
            continue
        index, name, used, total = line.split(",")
        number = lambda s: None if "N/A" in s else int(s)
        gpus.append({"index": int(index), "name": name, "used_mib": number(used), "total_mib": number(total)})
    return gpus
