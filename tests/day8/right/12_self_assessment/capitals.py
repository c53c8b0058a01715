ANSWERS = dict(portable="B", different_devices="C", no_grad="D", out_of_memory="A", another_process="C")
