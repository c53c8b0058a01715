# fails: read_nvidia_smi::reads_missing_values as -
def read_nvidia_smi(text):
    number = lambda field: int(field) if field.isdigit() else -1
    found = []
    for line in filter(str.strip, text.splitlines()):
        parts = [part.strip() for part in line.split(",")]
        gpu = {"index": int(parts[0]), "name": parts[1]}
        gpu["used_mib"] = number(parts[2])
        gpu["total_mib"] = number(parts[3])
        found.append(gpu)
    return found
