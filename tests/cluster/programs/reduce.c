/* Ranks that sum random numbers of each, over and over, and check the sum: reduce ROUNDS. Rank 0 reports
 * every hundredth round. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORDS = 4096 };

static uint64_t made(uint64_t rank, uint64_t turn, uint64_t i)
{
	uint64_t x = rank * 0x9e3779b97f4a7c15u + turn * 0xbf58476d1ce4e5b9u + i;

	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	return x ^ x >> 27;
}

int main(int argc, char **argv)
{
	static uint64_t mine[WORDS], all[WORDS];
	long rounds = argc > 1 ? atol(argv[1]) : 1000;
	int rank, size;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (long turn = 0; turn < rounds; turn++) {
		for (int i = 0; i < WORDS; i++)
			mine[i] = made((uint64_t)rank, (uint64_t)turn, (uint64_t)i);
		MPI_Allreduce(mine, all, WORDS, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < WORDS; i++) {
			uint64_t sum = 0;

			for (int r = 0; r < size; r++)
				sum += made((uint64_t)r, (uint64_t)turn, (uint64_t)i);
			if (all[i] != sum) {
				fprintf(stderr, "rank %d: round %ld: word %d is wrong\n", rank, turn, i);
				MPI_Abort(MPI_COMM_WORLD, 1);
			}
		}
		if (rank == 0 && turn % 100 == 0) {
			printf("round %ld\n", turn);
			fflush(stdout);
		}
	}
	if (rank == 0)
		printf("every sum is right\n");
	MPI_Finalize();
	return 0;
}
