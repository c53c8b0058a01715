# fails: ANSWERS::knows_what_two_devices_do as -
ANSWERS = {
    "portable": "b",
    "different_devices": "d",
    "no_grad": "d",
    "out_of_memory": "a",
    "another_process": "c",
}
