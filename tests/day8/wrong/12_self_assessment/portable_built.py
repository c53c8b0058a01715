# fails: ANSWERS::knows_the_portable_line as built-is-not-available
ANSWERS = {
    "portable": "c",
    "different_devices": "c",
    "no_grad": "d",
    "out_of_memory": "a",
    "another_process": "c",
}
