# fails: read_nvidia_smi::reads_every_gpu as -
def read_nvidia_smi(text):
    def number(s):
        try:
            return int(s)
        except ValueError:
            return None

    gpus = []
    for line in text.strip().splitlines():
        parts = [p.strip() for p in line.split(",")]
        if len(parts) < 4:
            continue
        gpus.append(
            {
                "index": parts[0],
                "name": parts[1],
                "used_mib": number(parts[2]),
                "total_mib": number(parts[2]),
            }
        )
    return gpus
