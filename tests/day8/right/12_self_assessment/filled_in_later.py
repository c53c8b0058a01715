ANSWERS = {
    "portable": None,
    "different_devices": None,
    "no_grad": None,
    "out_of_memory": None,
    "another_process": None,
}
ANSWERS["portable"] = "b)"
ANSWERS["different_devices"] = " c "
ANSWERS["no_grad"] = "(d)"
ANSWERS["out_of_memory"] = "a."
ANSWERS["another_process"] = "c"
