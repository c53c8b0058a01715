import torch

WEIGHTS = torch.tensor([0.299, 0.587, 0.114])


@torch.no_grad()
def grayscale(sprites):
    return (sprites * WEIGHTS.to(sprites.device)[:, None, None]).sum(1).contiguous()


@torch.inference_mode()
def recolor(indices, palette):
    count, height, width = indices.shape
    flat = palette.index_select(0, indices.flatten())
    return flat.view(count, height, width, 3).permute(0, 3, 1, 2).contiguous()


@torch.no_grad()
def nearest_color(sprites, palette):
    # |a - b|² without |a|², which is the same for every colour
    distances = palette.square().sum(1)[None, :, None, None] - 2 * torch.einsum("nchw,kc->nkhw", sprites, palette)
    return distances.min(dim=1).indices.int()
