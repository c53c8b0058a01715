# fails: read_nvidia_smi::skips_blank_lines as -
def read_nvidia_smi(text):
    number = lambda cell: None if cell == "[N/A]" else int(cell)
    gpus = []
    for line in text.strip().split("\n"):
        i, name, used, total = line.split(", ")
        gpus.append({"index": int(i), "name": name, "used_mib": number(used), "total_mib": number(total)})
    return gpus
