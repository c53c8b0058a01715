# fails: read_nvidia_smi::reads_missing_values as -
def read_nvidia_smi(text):

    def number(field):
        return int(field) if field.strip().isdigit() else 0

    rows = [line.split(", ") for line in text.splitlines() if line.strip()]
    return [
        {"index": int(i), "name": name.strip(), "used_mib": number(used), "total_mib": number(total)}
        for i, name, used, total in rows
    ]
