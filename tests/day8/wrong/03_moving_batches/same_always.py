# fails: on_same_device::compares_tensors as -
def on_same_device(*things):
    return True
