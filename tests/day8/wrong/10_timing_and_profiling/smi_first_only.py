# fails: read_nvidia_smi::reads_every_gpu as -
def read_nvidia_smi(text):
    for line in text.splitlines():
        if line:
            i, name, used, total = line.split(", ")
            number = lambda cell: None if cell == "[N/A]" else int(cell)
            return [{"index": int(i), "name": name, "used_mib": number(used), "total_mib": number(total)}]
    return []
