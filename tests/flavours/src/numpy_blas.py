"""Products of integer matrices, exact in doubles, on BLAS threads; repeated from the start at the end."""
import os
import time

import numpy

SIZE = 400
PRIME = 1009.0


def step(matrix, factor):
    return numpy.fmod(matrix @ factor, PRIME)


generator = numpy.random.default_rng(1998)
start = generator.integers(0, 1009, (SIZE, SIZE)).astype(float)
factor = generator.integers(0, 1009, (SIZE, SIZE)).astype(float)
matrix, steps = start, 0
while not os.path.exists("go"):
    matrix = step(matrix, factor)
    steps += 1
    if steps % 10 == 0:
        print("tick", steps, flush=True)
    time.sleep(0.002)
again = start
for _ in range(steps):
    again = step(again, factor)
ok = numpy.array_equal(again, matrix)
print("result ok" if ok else "result wrong")
raise SystemExit(not ok)
