import torch, torch.distributed as dist
def average_gradients(model):
    size = dist.get_world_size()
    for p in model.parameters():
        if p.grad is None:
            continue
        dist.reduce(p.grad, dst=0)
        if dist.get_rank() == 0:
            p.grad.div_(size)
        dist.broadcast(p.grad, src=0)
