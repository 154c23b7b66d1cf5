"""Looks for primes and keeps all that it found: a program with data that would be lost if it were killed."""
import time

primes = []
candidate = 2
began = time.monotonic()
while len(primes) < 16000:
    if all(candidate % prime for prime in primes if prime * prime <= candidate):
        primes.append(candidate)
        if len(primes) % 1000 == 0:
            print(f"{len(primes):6} primes, the largest {candidate:6}, their sum {sum(primes)}", flush=True)
    candidate += 1
print("done" if sum(primes) == 1336693479 else f"wrong: {sum(primes)}", flush=True)
