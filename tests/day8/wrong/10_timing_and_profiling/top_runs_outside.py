# fails: top_operations::gives_as_many_names_as_asked as -
import torch


def top_operations(fn, count=5):
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        pass
    fn()
    rows = [row for row in profiler.key_averages() if row.key.startswith('aten::')]
    rows.sort(key=lambda row: row.cpu_time_total, reverse=True)
    return [row.key for row in rows[:count]]
