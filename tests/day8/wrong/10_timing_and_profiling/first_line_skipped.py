# fails: read_nvidia_smi::reads_every_gpu as -
def read_nvidia_smi(text):
    found = []
    for line in text.splitlines()[1:]:
        if not line.strip():
            continue
        index, name, used, total = [part.strip() for part in line.split(",")]
        as_number = lambda part: None if part == "[N/A]" else int(part)
        found.append({"index": int(index), "name": name, "used_mib": as_number(used), "total_mib": as_number(total)})
    return found
