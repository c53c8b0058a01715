from enum import StrEnum


class Letter(StrEnum):
    A = "a"
    B = "b"
    C = "c"
    D = "d"


ANSWERS = dict(
    portable=Letter.B, different_devices=Letter.C, no_grad=Letter.D, out_of_memory=Letter.A, another_process=Letter.C
)
