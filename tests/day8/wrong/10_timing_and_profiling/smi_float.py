# fails: read_nvidia_smi::reads_every_gpu as -
def read_nvidia_smi(text):
    out = []
    for line in text.splitlines():
        if not line.strip():
            continue
        index, name, used, total = [p.strip() for p in line.split(",")]
        number = lambda v: None if v == "[N/A]" else float(v)
        out.append(
            {
                "index": int(index),
                "name": name,
                "used_mib": number(used),
                "total_mib": number(total),
            }
        )
    return out
