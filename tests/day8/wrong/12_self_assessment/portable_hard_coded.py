# fails: ANSWERS::knows_the_portable_line as hard-coded-cuda
ANSWERS = {
    "portable": "a",
    "different_devices": "c",
    "no_grad": "d",
    "out_of_memory": "a",
    "another_process": "c",
}
