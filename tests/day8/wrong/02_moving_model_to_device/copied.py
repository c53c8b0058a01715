# fails: move_model::returns_the_same_model as model-copied
import copy


def move_model(model, device):
    return copy.deepcopy(model).to(device)
