# fails: read_nvidia_smi::reads_every_gpu as -
def read_nvidia_smi(text):

    def as_mib(field):
        return None if "N/A" in field else float(field)

    gpus = []
    for line in text.splitlines():
        if line.strip():
            index, name, used, total = [part.strip() for part in line.split(",")]
            gpu = dict(index=int(index), name=name)
            gpu["used_mib"] = as_mib(used)
            gpu["total_mib"] = as_mib(total)
            gpus.append(gpu)
    return gpus
