/* Heap, stack, timer signals, stdio, floating point: various state of one C process, checked at the end. */
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct node {
	struct node *next;
	uint64_t number;
	uint64_t digest;
	char text[40];
};

static volatile sig_atomic_t ticks;

static void on_alarm(int signal)
{
	ticks++;
}

static uint64_t digest(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
}

static struct node *push(struct node *head, uint64_t number)
{
	struct node *node = malloc(sizeof(*node));

	if (node == NULL)
		abort();
	node->next = head;
	node->number = number;
	node->digest = digest(number + (head ? head->digest : 0));
	snprintf(node->text, sizeof(node->text), "%llu %.6f", (unsigned long long)number,
		 sin((double)number));
	return node;
}

static int check(const struct node *node)
{
	char text[40];

	for (; node; node = node->next) {
		snprintf(text, sizeof(text), "%llu %.6f", (unsigned long long)node->number,
			 sin((double)node->number));
		if (node->digest != digest(node->number + (node->next ? node->next->digest : 0)) ||
		    strcmp(node->text, text) != 0 || (node->next && node->number != node->next->number + 1))
			return 0;
	}
	return 1;
}

int main(void)
{
	struct itimerval every = {.it_interval.tv_usec = 5000, .it_value.tv_usec = 5000};
	struct timespec pause = {.tv_nsec = 1000000};
	struct node *head = NULL;
	uint64_t number = 0;
	pid_t pid = getpid();

	signal(SIGALRM, on_alarm);
	setitimer(ITIMER_REAL, &every, NULL);
	while (access("go", F_OK) != 0) {
		for (int i = 0; i < 100; i++)
			head = push(head, number++);
		if (number % 2000 == 0) {
			printf("tick %llu\n", (unsigned long long)number);
			fflush(stdout);
		}
		nanosleep(&pause, NULL);
	}
	int before = ticks;
	for (int i = 0; i < 200 && ticks < before + 3; i++)
		nanosleep(&pause, NULL);
	if (!check(head) || ticks < before + 3 || getpid() != pid) {
		printf("result wrong\n");
		return 1;
	}
	printf("result ok\n");
	return 0;
}
