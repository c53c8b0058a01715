# fails: ANSWERS::knows_what_two_devices_do as moved-by-itself
ANSWERS = {
    "portable": "b",
    "different_devices": "b",
    "no_grad": "d",
    "out_of_memory": "a",
    "another_process": "c",
}
