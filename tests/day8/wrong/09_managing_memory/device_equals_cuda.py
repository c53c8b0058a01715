# fails: peak_memory::finds_the_highest_moment as -
import torch
import torch.utils.checkpoint


def peak_memory(fn, device):
    answer = 0
    on_gpu = str(device) == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    fn()
    if on_gpu:
        answer = torch.cuda.max_memory_allocated(device)
    return answer
