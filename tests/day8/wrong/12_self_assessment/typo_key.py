# fails: ANSWERS::knows_the_portable_line as -
ANSWERS = {
    "portable ": "b",
    "different_devices": "c",
    "no_grad": "d",
    "out_of_memory": "a",
    "another_process": "c",
}
