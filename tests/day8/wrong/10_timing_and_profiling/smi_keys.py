# fails: read_nvidia_smi::reads_every_gpu as -
def read_nvidia_smi(text):
    keys = ["index", "name", "used_mb", "total_mb"]
    out = []
    for line in text.splitlines():
        if line.strip():
            row = dict(zip(keys, [p.strip() for p in line.split(",")]))
            row["index"] = int(row["index"])
            for k in keys[2:]:
                row[k] = None if row[k] == "[N/A]" else int(row[k])
            out.append(row)
    return out
