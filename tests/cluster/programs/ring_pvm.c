/*
 * PVM tasks in a ring over direct connections (PvmRouteDirect), with a token of data that each checks and
 * changes: ring_pvm ROUNDS TASKS [PAUSE]. The first task reports every tenth round, and pauses for PAUSE
 * microseconds in each.
 */
#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WORDS = 2000, TAG_RING = 1, TAG_TOKEN = 2, TASKS_MAX = 64 };

static unsigned made(unsigned hop, unsigned i)
{
	unsigned x = hop * 2654435761u + i * 40503u;

	return x ^ x >> 13;
}

static void send_token(int to, unsigned hop)
{
	unsigned words[WORDS];

	for (unsigned i = 0; i < WORDS; i++)
		words[i] = made(hop, i);
	pvm_initsend(PvmDataRaw);
	pvm_pkuint(&hop, 1, 1);
	pvm_pkuint(words, WORDS, 1);
	if (pvm_send(to, TAG_TOKEN) < 0)
		exit(3);
}

static unsigned take_token(unsigned expected)
{
	unsigned words[WORDS], hop = 0;

	if (pvm_recv(-1, TAG_TOKEN) < 0)
		exit(4);
	pvm_upkuint(&hop, 1, 1);
	pvm_upkuint(words, WORDS, 1);
	for (unsigned i = 0; i < WORDS; i++)
		if (words[i] != made(hop, i) || (expected && hop != expected)) {
			fprintf(stderr, "hop %u (%u expected): word %u is wrong\n", hop, expected, i);
			exit(5);
		}
	return hop;
}

static int be_first(char **argv, unsigned rounds, int tasks, unsigned pause)
{
	char *args[2] = {argv[1], NULL};
	int tids[TASKS_MAX];

	tids[0] = pvm_mytid();
	if (pvm_spawn(argv[0], args, PvmTaskDefault, "", tasks - 1, tids + 1) != tasks - 1)
		return 6;
	for (int i = 1; i < tasks; i++) {
		pvm_initsend(PvmDataRaw);
		pvm_pkint(&tids[(i + 1) % tasks], 1, 1);
		pvm_send(tids[i], TAG_RING);
	}
	for (unsigned round = 0; round < rounds; round++) {
		send_token(tids[1], round * (unsigned)tasks + 1);
		take_token((round + 1) * (unsigned)tasks);
		if (pause)
			usleep(pause);
		if (round % 10 == 0) {
			printf("round %u\n", round);
			fflush(stdout);
		}
	}
	printf("every token is right\n");
	return 0;
}

static int be_other(unsigned rounds)
{
	int to;

	pvm_recv(pvm_parent(), TAG_RING);
	pvm_upkint(&to, 1, 1);
	for (unsigned round = 0; round < rounds; round++)
		send_token(to, take_token(0) + 1);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 100;
	int tasks = argc > 2 ? atoi(argv[2]) : 4, status;

	if (pvm_mytid() < 0 || tasks < 2 || tasks > TASKS_MAX)
		return 2;
	pvm_setopt(PvmRoute, PvmRouteDirect);
	status = pvm_parent() == PvmNoParent
			 ? be_first(argv, rounds, tasks, argc > 3 ? (unsigned)atoi(argv[3]) : 0)
			 : be_other(rounds);
	pvm_exit();
	return status;
}
