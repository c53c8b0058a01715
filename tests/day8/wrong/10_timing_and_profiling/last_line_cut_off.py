# fails: read_nvidia_smi::reads_every_gpu as -
def read_nvidia_smi(text):
    def number(s):
        s = s.strip()
        return int(s) if s.isdigit() else None

    gpus = []
    for line in text.split("\n")[:-1]:
        if line.strip() == "":
            continue
        parts = line.split(",")
        gpus.append({"index": int(parts[0]), "name": parts[1].strip(), "used_mib": number(parts[2]), "total_mib": number(parts[3])})
    return gpus
