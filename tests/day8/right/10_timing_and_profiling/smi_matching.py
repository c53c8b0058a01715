def read_nvidia_smi(text):
    out = []
    for line in text.splitlines():
        match [f.strip() for f in line.split(",")]:
            case [index, name, used, total]:
                out += [
                    {
                        "name": name,
                        "total_mib": None if total == "[N/A]" else int(total),
                        "used_mib": None if used == "[N/A]" else int(used),
                        "index": int(index),
                    }
                ]
    return out
