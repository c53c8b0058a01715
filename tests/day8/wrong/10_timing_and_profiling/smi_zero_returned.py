# fails: read_nvidia_smi::reads_missing_values as -
def _mib(text):
    text = text.strip()
    if text == "[N/A]":
        return 0
    return int(text)


def read_nvidia_smi(text):
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        index, name, used, total = line.split(",")
        used, total = _mib(used), _mib(total)
        found.append(dict(index=int(index), name=name.strip(), used_mib=used, total_mib=total))
    return found
