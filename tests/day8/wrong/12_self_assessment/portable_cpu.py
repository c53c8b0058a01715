# fails: ANSWERS::knows_the_portable_line as never-the-gpu
ANSWERS = {
    "portable": "d",
    "different_devices": "c",
    "no_grad": "d",
    "out_of_memory": "a",
    "another_process": "c",
}
